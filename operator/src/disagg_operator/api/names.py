"""Every name and label that the operator gives, in one table.

Selectors are immutable in Kubernetes, so a change here orphans running workloads: docs/adr/0002-names-and-labels.md.
"""

import re
from enum import StrEnum
from typing import Final

GROUP: Final = "inference.disagg.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "DisaggregatedInference"
PLURAL: Final = "disaggregatedinferences"
SINGULAR: Final = "disaggregatedinference"
SHORT_NAME: Final = "dinf"
CATEGORY: Final = "inference"

SCALER_KIND: Final = "DisaggregatedInferenceScaler"
SCALER_PLURAL: Final = "disaggregatedinferencescalers"
SCALER_SINGULAR: Final = "disaggregatedinferencescaler"
SCALER_SHORT_NAME: Final = "dinfs"

FIELD_MANAGER: Final = "disaggregated-inference-operator"
# Writes the count of a new scaler, once. The operator's own field manager never owns a count that others scale.
SEED_MANAGER: Final = f"{FIELD_MANAGER}-seed"

# What keeps the pods of a part, with its API version.
WORKLOADS: Final = {"Deployment": "apps/v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}

# The longest suffix below is "-mooncake-config" with 16 characters: 45 + 16 leaves room inside 63.
MAX_NAME_LENGTH: Final = 45
NAME_PATTERN: Final = "^[a-z][-a-z0-9]*[a-z0-9]$"

LABEL_NAME: Final = f"{GROUP}/name"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_KV_REVISION: Final = f"{GROUP}/kv-revision"
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = FIELD_MANAGER
# Foreign routers (llm-d's) find prefill and decode by this label.
LABEL_FOREIGN_ROLE: Final = "llm-d.ai/role"

ANNOTATION_CONFIG_HASH: Final = f"{GROUP}/config-hash"
ANNOTATION_RESTART: Final = f"{GROUP}/restart"

# Ports inside pods. Each pod has its own IP, so they clash only under hostNetwork.
PORT_HTTP: Final = 8000
PORT_MASTER_RPC: Final = 50051
PORT_MASTER_ADMIN: Final = 9003
PORT_METADATA: Final = 8080
PORT_ROUTER_ADMIN: Final = 9090
PORT_ETCD: Final = 2379


class Component(StrEnum):
    """The parts of one DisaggregatedInference; each part's objects are named `<name>-<part>`."""

    PREFILL = "prefill"
    DECODE = "decode"
    MASTER = "master"
    METADATA = "metadata"
    ROUTER = "router"


ENGINE_ROLES: Final = (Component.PREFILL, Component.DECODE)


def child_name(owner: str, component: Component) -> str:
    """Name of the workload, Service, PodDisruptionBudget, NetworkPolicy and scaler of one part."""
    return f"{owner}-{component}"


def config_map_name(owner: str) -> str:
    """Name of the ConfigMap that holds `mooncake_config.json`."""
    return f"{owner}-mooncake-config"


def selector_labels(owner: str, component: Component) -> dict[str, str]:
    """Labels that select the pods of one part: few, and never changed."""
    return {LABEL_NAME: owner, LABEL_ROLE: component.value}


def selector_text(owner: str, component: Component) -> str:
    """The same as one text, as kubectl and `/scale` take it."""
    return ",".join(f"{key}={value}" for key, value in selector_labels(owner, component).items())


def object_labels(owner: str, component: Component | None = None) -> dict[str, str]:
    """Labels on every object of one DisaggregatedInference, the recommended ones included."""
    labels = {
        "app.kubernetes.io/name": SINGULAR,
        "app.kubernetes.io/instance": owner,
        LABEL_MANAGED_BY: MANAGED_BY,
        "app.kubernetes.io/part-of": owner,
        LABEL_NAME: owner,
    }
    if component is not None:
        labels["app.kubernetes.io/component"] = component.value
        labels[LABEL_ROLE] = component.value
    if component in ENGINE_ROLES:
        labels[LABEL_FOREIGN_ROLE] = component.value
    return labels


def suggest_name(name: str) -> str:
    """A legal name near `name`, for error messages."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not cleaned or not cleaned[0].isalpha():
        cleaned = f"m-{cleaned}".rstrip("-")
    cleaned = cleaned[:MAX_NAME_LENGTH].rstrip("-")
    return cleaned if len(cleaned) > 1 else f"{cleaned}-model"
