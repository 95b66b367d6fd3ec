"""What builders are given besides the resource itself. All of it is data, so that building stays pure."""

from dataclasses import dataclass
from typing import Any, Final

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
    """What the cluster offers and how it is named."""

    cluster_domain: str = "cluster.local"
    operator_namespace: str = ""
    has_pod_monitor: bool = False
    has_leader_worker_set: bool = False


@dataclass(frozen=True)
class Problem:
    """Why a resource cannot be built: where, what was found, and what would be right."""

    path: str
    found: str
    remedy: str

    def __str__(self) -> str:
        """One sentence for a condition or an event."""
        return f"{self.path}: {self.found}; {self.remedy}"


@dataclass(frozen=True)
class Desired:
    """All that a resource should have.

    `children` are complete manifests (namespace, labels, owner reference included) in the order in which they are
    written. `revisions` has the digest of each engine role's pod template. `hints` are things that work but deserve
    a look.
    """

    children: tuple[Manifest, ...]
    kv_revision: str
    revisions: dict[str, str]
    model_name: str
    endpoint: str
    hints: tuple[str, ...] = ()
