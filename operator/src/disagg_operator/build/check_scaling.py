"""Why a role cannot be scaled as it is wished: kinds that the cluster lacks, and autoscalers that could not work."""

from collections.abc import Iterator
from typing import Any, Final

from mooncake_store_connector.problems import Problem

from disagg_operator.api.engine import Scaling
from disagg_operator.build.inputs import ClusterFacts

# Only these can be read while there is no pod. Kubernetes refuses an autoscaler to zero without one of them.
_WAKING: Final = ("External", "Object")
# KEDA takes these for always active.
_NEVER_IDLE: Final = frozenset({"cpu", "memory"})
# Fields of a ScaledObject that follow from others here, with where those are.
_OWNED: Final = {
    "scaleTargetRef": "remove it: the target is the role's scaler",
    "minReplicaCount": "remove it, and set minReplicas beside keda",
    "maxReplicaCount": "remove it, and set maxReplicas beside keda",
}


def find_scaling_problems(path: str, scaling: Scaling | None, facts: ClusterFacts) -> Iterator[Problem]:
    """Problems of one role's `scaling`, which stands at a path."""
    if scaling is None:
        return
    if not facts.has_scaler:
        found = "asked for, and this cluster has no DisaggregatedInferenceScaler"
        yield Problem(path, found, "apply the definitions in crds/ of this version, or set replicas instead")
    if scaling.keda is not None:
        yield from _find_keda_problems(f"{path}.keda", scaling.keda, facts)
        yield from _find_sleepless(f"{path}.minReplicas", scaling.keda, scaling.min_replicas)
    kinds = [str(metric.get("type")) for metric in scaling.metrics or []]
    if kinds and scaling.min_replicas == 0 and not set(kinds) & set(_WAKING):
        yield Problem(
            f"{path}.minReplicas",
            f"found 0 with metrics of type {', '.join(sorted(set(kinds)))}, which pods alone have: at zero nothing "
            "would wake the role",
            f"add a metric of type {' or '.join(_WAKING)}, or set minReplicas to 1",
        )


def _find_keda_problems(path: str, keda: dict[str, object], facts: ClusterFacts) -> Iterator[Problem]:
    if not facts.has_scaled_object:
        found = "asked for, and this cluster has no ScaledObject"
        yield Problem(path, found, "install KEDA (keda.sh), or scale by metrics")
    for field, remedy in _OWNED.items():
        if field in keda:
            yield Problem(f"{path}.{field}", "the operator writes it", remedy)


def _find_sleepless(path: str, keda: dict[str, Any], least: int) -> Iterator[Problem]:
    """KEDA says this itself, but of Deployments alone."""
    kinds = {str(trigger.get("type")) for trigger in keda.get("triggers") or []}
    if least == 0 and kinds and kinds <= _NEVER_IDLE:
        yield Problem(
            path,
            f"found 0 with triggers of type {', '.join(sorted(kinds))} alone, which KEDA takes for always active: "
            "the role would never come to zero",
            "add a trigger of another type, or set minReplicas to 1",
        )
