"""Where each kind that the operator handles lives in the API. A table instead of discovery: no request, no cache."""

from dataclasses import dataclass
from typing import Any, Final

from disagg_operator.api import names

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One namespaced kind."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        """URL path of the collection, or of one object. Without a namespace: the collection over all of them."""
        prefix = "api" if "/" not in self.api_version else "apis"
        scope = f"namespaces/{namespace}/" if namespace else ""
        collection = f"/{prefix}/{self.api_version}/{scope}{self.plural}"
        return f"{collection}/{name}" if name else collection


DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
CONTROLLER_REVISION: Final = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
LEADER_WORKER_SET: Final = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
SCALER: Final = Kind(names.API_VERSION, names.SCALER_KIND, names.SCALER_PLURAL)
AUTOSCALER: Final = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
SCALED_OBJECT: Final = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
RESOURCE: Final = Kind(names.API_VERSION, names.KIND, names.PLURAL)

# Kinds of children. The optional ones exist only where their CRD does.
CHILDREN: Final = (
    DEPLOYMENT,
    CONTROLLER_REVISION,
    CONFIG_MAP,
    SERVICE,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
)
OPTIONAL_CHILDREN: Final = (POD_MONITOR, LEADER_WORKER_SET, SCALER)
# They stand beside scalers alone, so other resources' reconciles need not ask for them.
AUTOSCALERS: Final = (AUTOSCALER, SCALED_OBJECT)
_BY_TYPE: Final = {(kind.api_version, kind.kind): kind for kind in (*CHILDREN, *OPTIONAL_CHILDREN, *AUTOSCALERS)}


def kind_of(manifest: Manifest) -> Kind:
    """The kind of a child manifest. Raises KeyError for a kind that no builder makes."""
    return _BY_TYPE[manifest["apiVersion"], manifest["kind"]]
