"""What the operator may do in a cluster: the one table from which the chart's roles are made.

A test holds it against the API server's audit log: every verb that is used is here.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Right:
    """Verbs on resources of one API group, and why they are needed."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str


_READ: Final = ("get", "list", "watch")
# Server-side apply creates with `create` and changes with `patch`; pruning deletes.
_OWN: Final = (*_READ, "create", "patch", "delete")

# In every namespace that is watched.
NAMESPACED: Final = (
    Right("inference.disagg.io", ("disaggregatedinferences",), _READ, "the resources that users write"),
    Right("inference.disagg.io", ("disaggregatedinferences/status",), ("patch",), "their status"),
    Right(
        "inference.disagg.io",
        ("disaggregatedinferences/finalizers",),
        ("update",),
        "owner references that block deletion, where the cluster enforces that right",
    ),
    Right("inference.disagg.io", ("disaggregatedinferencescalers",), _OWN, "the counts of roles that others scale"),
    Right("inference.disagg.io", ("disaggregatedinferencescalers/status",), ("patch",), "what /scale tells of them"),
    Right("apps", ("deployments",), _OWN, "prefill, decode, master, metadata and router"),
    Right("apps", ("controllerrevisions",), _OWN, "images and template version of each resource, recorded"),
    Right("", ("configmaps", "services", "serviceaccounts"), _OWN, "configuration, addresses, the router's identity"),
    Right("rbac.authorization.k8s.io", ("roles", "rolebindings"), _OWN, "the router's right to see pods"),
    Right("policy", ("poddisruptionbudgets",), _OWN, "one pod at a time in a drain"),
    Right("networking.k8s.io", ("networkpolicies",), _OWN, "closed by default"),
    Right("autoscaling", ("horizontalpodautoscalers",), _OWN, "autoscalers by metrics"),
    Right("keda.sh", ("scaledobjects",), _OWN, "autoscalers by KEDA, where that CRD is there"),
    Right("", ("pods",), _READ, "why pods do not start; also what the router's Role grants"),
    Right("", ("events",), ("create", "list"), "what happened, for kubectl describe; why a pod's volumes hang"),
    Right("monitoring.coreos.com", ("podmonitors",), _OWN, "metrics, where that CRD is there"),
    Right("leaderworkerset.x-k8s.io", ("leaderworkersets",), _OWN, "replicas that span nodes, where that CRD is there"),
)

# In the operator's own namespace.
OWN_NAMESPACE: Final = (
    Right("coordination.k8s.io", ("leases",), ("get", "create", "update"), "one leader among replicas"),
)

# Only when every namespace is watched.
CLUSTER: Final = (
    Right(
        "apiextensions.k8s.io", ("customresourcedefinitions",), ("list", "watch"), "kopf looks for the CRD to appear"
    ),
    Right("", ("namespaces",), ("list", "watch"), "kopf lists namespaces to watch"),
)
