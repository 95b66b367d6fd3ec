"""The whole status of a resource, and the events that its transitions deserve."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from disagg_operator.api.names import ENGINE_ROLES, Component, selector_text
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.inputs import Desired
from disagg_operator.status.conditions import Expectation, Verdict, expected_segments, merge_conditions
from disagg_operator.status.observation import Observation, Part
from disagg_operator.status.reasons import ConditionType, Reason

Manifest = dict[str, Any]
_MAX_HINTS: Final = 32
_MAX_HINT: Final = 1024
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
            "segments": len(seen.segments or ()),
            "expectedSegments": expected_segments(seen, expected),
            "poolSize": format_size(desired.pool_bytes),
        },
    }
    for role in ENGINE_ROLES:
        status[role.value] = {**_role_counts(seen.parts[role]), **_role_names(resource, desired, role)}
    hints = [*desired.hints, *(sentence[:_MAX_HINT] for sentence in seen.additions)]
    if hints:
        status["hints"] = hints[:_MAX_HINTS]
    return status


def _role_counts(part: Part) -> Manifest:
    return {
        "replicas": part.replicas,
        "readyReplicas": part.ready,
        "updatedReplicas": part.updated,
        "ready": f"{part.ready}/{part.wished}",
    }


def _role_names(resource: DisaggregatedInference, desired: Desired, role: Component) -> Manifest:
    return {"selector": selector_text(resource.metadata.name, role), "revision": desired.revisions[role.value]}


def halted_status(generation: int, old: Manifest, seen: Observation) -> Manifest:
    """The status of a resource that cannot be written now: what was last known, with present counts."""
    status = {key: value for key, value in old.items() if key != "conditions"}
    status["observedGeneration"] = generation
    for role in ENGINE_ROLES:
        if role in seen.parts:
            status[role.value] = {**status.get(role.value, {}), **_role_counts(seen.parts[role])}
    return status


def is_same_status(one: Manifest, other: Manifest) -> bool:
    """Whether two statuses say the same; conditions have no order."""
    return _by_type(one) == _by_type(other)


def _by_type(status: Manifest) -> Manifest:
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    return {**status, "conditions": conditions}


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


# What an event is called when a condition becomes True, and when it is True no more.
_EVENTS: Final = {
    ConditionType.READY: ("Ready", "NotReady"),
    ConditionType.AVAILABLE: ("Available", "NotAvailable"),
    ConditionType.KV_SHARING: ("KVSharing", "KVSharingLost"),
    ConditionType.DEGRADED: ("Degraded", "Recovered"),
    ConditionType.SCALING_LIMITED: ("ScalingLimited", "ScalingAsWished"),
    ConditionType.UPDATE_AVAILABLE: ("UpdateAvailable", ""),
    ConditionType.STALLED: ("Stalled", ""),
}
_WARNINGS: Final = frozenset({"NotAvailable", "KVSharingLost", "Degraded", "Stalled"})
# Another reason of these is news too.
_RETOLD: Final = frozenset({ConditionType.DEGRADED, ConditionType.STALLED, ConditionType.SCALING_LIMITED})
# While these keep the operator from writing, they are told by their own name.
_OBSTACLES: Final = frozenset(
    {Reason.RESOURCE_CONFLICT, Reason.FORBIDDEN, Reason.API_ERROR, Reason.WAITING_FOR_OLD_CHILDREN}
)


def plan_events(old: Manifest, new: Manifest) -> list[Event]:
    """Events for what flipped between two statuses, obstacles and new revisions. A repeated state is told once."""
    before = {condition["type"]: condition for condition in old.get("conditions", [])}
    events = [*_tell_revisions(old, new)]
    for condition in new["conditions"]:
        told = _tell_condition(before.get(condition["type"], {}), condition)
        if told is not None:
            events.append(told)
    return events


def _tell_revisions(old: Manifest, new: Manifest) -> Iterator[Event]:
    for role in ENGINE_ROLES:
        before, after = (status.get(role.value, {}).get("revision") for status in (old, new))
        if before and after and before != after:
            yield Event("Normal", "RolloutStarted", f"{role} pods move from revision {before} to {after}")


def _tell_condition(known: Manifest, condition: Manifest) -> Event | None:
    kind, message = ConditionType(condition["type"]), f"{condition['reason']}: {condition['message']}"
    is_true, was_true = condition["status"] == "True", known.get("status") == "True"
    if kind == ConditionType.RECONCILING:
        is_news = condition["reason"] in _OBSTACLES and condition["reason"] != known.get("reason")
        return Event("Warning", condition["reason"], condition["message"]) if is_news else None
    became, ended = _EVENTS.get(kind, ("", ""))
    has_new_reason = kind in _RETOLD and condition["reason"] != known.get("reason")
    if is_true and (not was_true or has_new_reason):
        name = became
    elif was_true and not is_true:
        name = ended
    else:
        return None
    return Event("Warning" if name in _WARNINGS else "Normal", name, message) if name else None
