"""The whole status of a resource, and the events that its transitions deserve."""

from dataclasses import dataclass
from typing import Any, Final

from disagg_operator.api.names import Component, selector_labels
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.inputs import Desired
from disagg_operator.status.conditions import Expectation, Verdict, expected_segments, merge_conditions
from disagg_operator.status.observation import Observation
from disagg_operator.status.reasons import ConditionType

Manifest = dict[str, Any]
_UNITS: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


@dataclass(frozen=True)
class Event:
    """One event to post. `type` is Normal or Warning."""

    type: str
    reason: str
    message: str


def build_status(
    resource: DisaggregatedInference, desired: Desired, seen: Observation, expected: Expectation
) -> Manifest:
    """Everything of the status but the conditions."""
    status: Manifest = {
        "observedGeneration": resource.metadata.generation,
        "kvRevision": desired.kv_revision,
        "endpoint": desired.endpoint,
        "model": desired.model_name,
        "kvStore": {
            "segments": seen.segments or 0,
            "expectedSegments": expected_segments(seen, expected),
            "poolSize": format_size(desired.pool_bytes),
        },
    }
    for role in (Component.PREFILL, Component.DECODE):
        part = seen.parts[role]
        labels = selector_labels(resource.metadata.name, role)
        status[role.value] = {
            "replicas": part.replicas,
            "readyReplicas": part.ready,
            "updatedReplicas": part.updated,
            "ready": f"{part.ready}/{part.wished}",
            "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
            "revision": desired.revisions[role.value],
        }
    if desired.hints:
        status["hints"] = list(desired.hints[:32])
    return status


def halted_status(resource: DisaggregatedInference, old: Manifest) -> Manifest:
    """The status of a resource that could not be written: what was last known, for the present generation."""
    kept = {key: value for key, value in old.items() if key != "conditions"}
    return {**kept, "observedGeneration": resource.metadata.generation}


def with_conditions(status: Manifest, old: Manifest, verdicts: list[Verdict], now: str) -> Manifest:
    """The status with its conditions; times are kept where nothing flipped."""
    generation = status["observedGeneration"]
    return {**status, "conditions": merge_conditions(old.get("conditions", []), verdicts, generation, now)}


def format_size(size: int) -> str:
    """Bytes as the largest binary unit that divides them."""
    for unit, factor in _UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


_TOLD: Final = (
    ConditionType.READY,
    ConditionType.AVAILABLE,
    ConditionType.DEGRADED,
    ConditionType.KV_SHARING,
    ConditionType.UPDATE_AVAILABLE,
    ConditionType.STALLED,
)
_GOOD_IF_TRUE: Final = (ConditionType.READY, ConditionType.AVAILABLE, ConditionType.KV_SHARING)


def plan_events(old: Manifest, new: Manifest) -> list[Event]:
    """One event for each condition that flipped or changed its reason. The first sight of a good state is none."""
    before = {condition["type"]: condition for condition in old.get("conditions", [])}
    events = []
    for condition in new["conditions"]:
        kind = ConditionType(condition["type"])
        known = before.get(condition["type"])
        if kind not in _TOLD or (known and _same(known, condition)):
            continue
        is_good = (condition["status"] == "True") == (kind in _GOOD_IF_TRUE)
        if known is None and not _is_worth_telling(kind, condition["status"]):
            continue
        is_quiet = is_good or condition["status"] == "Unknown" or kind == ConditionType.UPDATE_AVAILABLE
        reason = kind.value if condition["status"] == "True" else f"Not{kind.value}"
        events.append(
            Event("Normal" if is_quiet else "Warning", reason, f"{condition['reason']}: {condition['message']}")
        )
    return events


def _is_worth_telling(kind: ConditionType, status: str) -> bool:
    return status == "True" and kind in (ConditionType.READY, ConditionType.DEGRADED, ConditionType.STALLED)


def _same(known: Manifest, condition: Manifest) -> bool:
    return bool(known["status"] == condition["status"] and known["reason"] == condition["reason"])
