"""What builders are given besides the resource itself. All of it is data, so that building stays pure."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from disagg_operator.api.names import Component, child_name
from disagg_operator.api.resource import DisaggregatedInference, Spec

Manifest = dict[str, Any]

# The version of the pod templates that this operator builds for new or changed resources. A resource keeps the
# version that it was recorded with until its user changes it, so raising this number restarts nobody's engines.
TEMPLATE_VERSION: Final = 1


@dataclass(frozen=True)
class Images:
    """Default images, one per part."""

    engine_cuda: str
    engine_cpu: str
    store: str
    router: str


@dataclass(frozen=True)
class Pins:
    """What a resource is built with until its user changes it: recorded in a ControllerRevision at first sight."""

    images: Images
    template_version: int = TEMPLATE_VERSION


@dataclass(frozen=True)
class ClusterFacts:
    """What the cluster offers and how it is named.

    `ip_family` is the family of the cluster's default Service (the operator's own KUBERNETES_SERVICE_HOST tells it):
    servers that bind one family only are told which.
    """

    cluster_domain: str = "cluster.local"
    operator_namespace: str = ""
    ip_family: Literal["IPv4", "IPv6"] = "IPv4"
    has_pod_monitor: bool = False
    has_leader_worker_set: bool = False
    has_scaler: bool = False
    has_scaled_object: bool = False


@dataclass(frozen=True)
class Counts:
    """Replicas that each engine role is to run now. Who decides them is no matter of building."""

    prefill: int = 1
    decode: int = 1

    def of(self, role: Component) -> int:
        """The replicas of one engine role."""
        return self.prefill if role is Component.PREFILL else self.decode


@dataclass(frozen=True)
class Context:
    """One resource with all that its children are built from."""

    resource: DisaggregatedInference
    pins: Pins
    facts: ClusterFacts
    counts: Counts = Counts()

    @property
    def name(self) -> str:
        """Name of the resource, from which every child's name is made."""
        return self.resource.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the resource and of all its children."""
        return self.resource.metadata.namespace

    @property
    def spec(self) -> Spec:
        """What the user wishes."""
        return self.resource.spec


def service_host(resource: DisaggregatedInference, component: Component) -> str:
    """Name under which a part's Service is found from any namespace, whatever the cluster's domain is."""
    return f"{child_name(resource.metadata.name, component)}.{resource.metadata.namespace}.svc"


@dataclass(frozen=True)
class Desired:
    """All that a resource should have.

    `children` are complete manifests (namespace, labels, owner reference included) in the order in which they are
    written. `revisions` has the digest of each engine role's pod template. `hints` are things that work but deserve
    a look. `segments` has the store segments that one replica of each role registers when it is up, `pool_bytes` is
    the memory of the whole store when every wished replica is up.
    """

    children: tuple[Manifest, ...]
    kv_revision: str
    revisions: dict[str, str]
    model_name: str
    endpoint: str
    hints: tuple[str, ...] = ()
    segments: dict[str, int] = field(default_factory=dict)
    pool_bytes: int = 0
