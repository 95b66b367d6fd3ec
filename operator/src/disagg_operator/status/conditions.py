"""Conditions of one resource, from what was observed: kstatus' rules, one pure function for each condition."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from disagg_operator.api.names import Component
from disagg_operator.status.observation import Observation, Part
from disagg_operator.status.reasons import ConditionType, Reason

Manifest = dict[str, Any]
_MAX_MESSAGE: Final = 4096
_PAUSED: Final = "spec.paused holds the rollout: "
_NOT_READY: Final = {
    Component.PREFILL: Reason.PREFILL_NOT_READY,
    Component.DECODE: Reason.DECODE_NOT_READY,
    Component.ROUTER: Reason.ROUTER_NOT_READY,
    Component.MASTER: Reason.MASTER_NOT_READY,
    Component.METADATA: Reason.METADATA_NOT_READY,
}
# In this order the first part that is not as it should be gives the reason: what is most needed first.
_ORDER: Final = (Component.DECODE, Component.ROUTER, Component.PREFILL, Component.MASTER, Component.METADATA)


@dataclass(frozen=True)
class Verdict:
    """One condition without its times."""

    type: ConditionType
    is_true: bool | None
    reason: Reason
    message: str

    @property
    def status(self) -> str:
        """True, False or Unknown."""
        return "Unknown" if self.is_true is None else str(self.is_true)


@dataclass(frozen=True)
class Limit:
    """Why a role does not run what its scaler asks for, or cannot be woken by its autoscaler."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Expectation:
    """What the observation is held against: segments that ready engines register, and the user's wishes."""

    segments_per_replica: dict[str, int]
    has_own_connector: bool = True
    has_managed_master: bool = True
    is_update_available: bool = False
    limits: tuple[Limit, ...] = ()
    is_paused: bool = False
    held: frozenset[Component] = frozenset()


def judge(seen: Observation, expected: Expectation) -> list[Verdict]:
    """All conditions of a resource whose children are written."""
    ready, progressing = judge_ready(seen, expected), judge_progressing(seen, expected)
    verdicts = [
        ready,
        judge_available(seen),
        progressing,
        judge_degraded(seen),
        judge_kv_sharing(seen, expected),
        judge_scaling(expected),
        judge_update(expected),
    ]
    if progressing.reason == Reason.PROGRESS_DEADLINE_EXCEEDED:
        verdicts.append(Verdict(ConditionType.STALLED, True, progressing.reason, progressing.message))
    elif ready.is_true is not True:
        verdicts.append(Verdict(ConditionType.RECONCILING, True, ready.reason, ready.message))
    return verdicts


def judge_ready(seen: Observation, expected: Expectation) -> Verdict:
    """True when every part is exactly as wished. A decode of zero is a wish too: Ready, reason Suspended."""
    unsettled = [part for part in _parts(seen) if not part.is_settled]
    if not unsettled:
        if seen.parts[Component.DECODE].wished == 0:
            message = "decode is scaled to zero by wish: requests are answered 503"
            return Verdict(ConditionType.READY, True, Reason.SUSPENDED, message)
        return Verdict(ConditionType.READY, True, Reason.READY, "every pod is ready and of the present revision")
    message = "; ".join(_tell(part) for part in unsettled)
    if _is_waiting(unsettled, expected):
        return Verdict(ConditionType.READY, False, Reason.PAUSED, _PAUSED + message)
    return Verdict(ConditionType.READY, False, _NOT_READY[unsettled[0].component], message)


def _is_waiting(unsettled: list[Part], expected: Expectation) -> bool:
    """Whether all that is amiss is the rollout that the user has paused."""
    return expected.is_paused and all(part.is_behind for part in unsettled)


def judge_available(seen: Observation) -> Verdict:
    """True when requests are answered: a decode pod and a router pod are ready."""
    decode, router = seen.parts[Component.DECODE], seen.parts[Component.ROUTER]
    if decode.wished == 0:
        message = "decode is scaled to zero by wish: requests are answered 503"
        return Verdict(ConditionType.AVAILABLE, False, Reason.SUSPENDED, message)
    for part in (decode, router):
        if part.ready == 0:
            return Verdict(ConditionType.AVAILABLE, False, _NOT_READY[part.component], _tell(part))
    return Verdict(ConditionType.AVAILABLE, True, Reason.AVAILABLE, "decode and router answer requests")


def judge_progressing(seen: Observation, expected: Expectation) -> Verdict:
    """True while pods are on their way to what is wished."""
    for part in _parts(seen):
        if part.is_stuck:
            message = f"{part.component} made no progress within progressDeadlineSeconds: {_tell(part)}"
            return Verdict(ConditionType.PROGRESSING, False, Reason.PROGRESS_DEADLINE_EXCEEDED, message)
    moving = [part for part in _parts(seen) if not part.is_settled]
    if moving:
        message = "; ".join(_tell(part) for part in moving)
        if _is_waiting(moving, expected):
            return Verdict(ConditionType.PROGRESSING, False, Reason.PAUSED, _PAUSED + message)
        for role in sorted(expected.held):
            message += f"; {role} waits, so that both roles move in proportion"
        return Verdict(ConditionType.PROGRESSING, True, Reason.ROLLING_OUT, message)
    return Verdict(ConditionType.PROGRESSING, False, Reason.SETTLED, "nothing is on its way")


def judge_degraded(seen: Observation) -> Verdict:
    """True when something wished is lost or fails. What the user scaled to zero is neither."""
    failing = [part for part in _parts(seen) if part.failures and not part.is_settled]
    if failing:
        message = "; ".join(dict.fromkeys(failure for part in failing for failure in part.failures))
        return Verdict(ConditionType.DEGRADED, True, Reason.POD_FAILING, message)
    lost = [part for part in _parts(seen) if part.is_lost or part.is_stuck]
    if lost:
        consequence = {
            Component.PREFILL: "decode computes prompts itself",
            Component.MASTER: "no KV is shared; engines compute prompts themselves",
        }.get(lost[0].component, "")
        message = _tell(lost[0]) + (f"; {consequence}" if consequence else "")
        return Verdict(ConditionType.DEGRADED, True, _NOT_READY[lost[0].component], message)
    return Verdict(ConditionType.DEGRADED, False, Reason.AS_WISHED, "nothing that is wished is lost")


def judge_kv_sharing(seen: Observation, expected: Expectation) -> Verdict:
    """Whether KV can go from prefill to decode, judged by the segments that the master knows."""
    prefill, decode = seen.parts[Component.PREFILL], seen.parts[Component.DECODE]
    kind = ConditionType.KV_SHARING
    if not expected.has_own_connector:
        message = "spec.<role>.kvTransferConfig replaces the connector; whether KV is shared is not known"
        return Verdict(kind, None, Reason.CONNECTOR_REPLACED, message)
    if prefill.wished == 0:
        message = "prefill is scaled to zero by wish: decode computes prompts itself"
        return Verdict(kind, False, Reason.PREFILL_SCALED_TO_ZERO, message)
    if decode.wished == 0:
        return Verdict(kind, False, Reason.DECODE_SCALED_TO_ZERO, "decode is scaled to zero by wish")
    for part in (prefill, decode):
        if part.ready == 0:
            return Verdict(kind, False, _NOT_READY[part.component], _tell(part))
    if not expected.has_managed_master:
        message = "the master is not this resource's own, so it is not asked which segments it has"
        return Verdict(kind, None, Reason.MASTER_EXTERNAL, _with_note(message, seen))
    master = seen.parts.get(Component.MASTER)
    if master is not None and master.ready == 0:
        return Verdict(kind, False, Reason.MASTER_NOT_READY, _with_note(_tell(master), seen))
    if seen.segments is None:
        message = "the master's admin page cannot be asked from the operator"
        return Verdict(kind, None, Reason.MASTER_UNREACHABLE, _with_note(message, seen))
    wanted = expected_segments(seen, expected)
    # A pod may be ready before its workload's status says so.
    told = f"{min(seen.shared, wanted)} of {wanted} segments of ready engines are registered with the master"
    if seen.shared < wanted:
        return Verdict(kind, False, Reason.SEGMENTS_MISSING, _with_note(told, seen))
    return Verdict(kind, True, Reason.SEGMENTS_REGISTERED, told)


def _with_note(message: str, seen: Observation) -> str:
    """A message with what an engine said that started without the store: which address it tried, and what it saw."""
    return f"{message}; {seen.store_note}" if seen.store_note else message


def expected_segments(seen: Observation, expected: Expectation) -> int:
    """Segments that the ready engines should have registered."""
    roles = (Component.PREFILL, Component.DECODE)
    return sum(seen.parts[role].ready * expected.segments_per_replica.get(role.value, 0) for role in roles)


def judge_scaling(expected: Expectation) -> Verdict:
    """True while a role's scaler is not followed, or its autoscaler cannot do what it is there for."""
    if not expected.limits:
        message = "every role runs the count that is wished"
        return Verdict(ConditionType.SCALING_LIMITED, False, Reason.AS_WISHED, message)
    message = "; ".join(limit.message for limit in expected.limits)
    return Verdict(ConditionType.SCALING_LIMITED, True, expected.limits[0].reason, message)


def judge_update(expected: Expectation) -> Verdict:
    """Whether the operator has newer images or templates than this resource is built with."""
    if expected.is_update_available:
        message = (
            "the operator's images or templates are newer than those recorded for this resource; they are taken up "
            "at the next change of the spec, or by a new value of spec.restart"
        )
        return Verdict(ConditionType.UPDATE_AVAILABLE, True, Reason.OPERATOR_DEFAULTS_CHANGED, message)
    message = "this resource is built with the operator's present images and templates"
    return Verdict(ConditionType.UPDATE_AVAILABLE, False, Reason.UP_TO_DATE, message)


def judge_halt(seen: Observation, reason: Reason, message: str, *, is_final: bool) -> list[Verdict]:
    """Conditions of a resource that cannot be written now: finally (Stalled) or for the moment (Reconciling).

    What an earlier spec has brought about may still serve, so it is judged as far as it is there.
    """
    extra = ConditionType.STALLED if is_final else ConditionType.RECONCILING
    verdicts = [Verdict(ConditionType.READY, False, reason, message)]
    if {Component.DECODE, Component.ROUTER} <= seen.parts.keys():
        verdicts += [judge_available(seen), judge_degraded(seen)]
    else:
        verdicts += [
            Verdict(ConditionType.AVAILABLE, False, reason, message),
            Verdict(ConditionType.DEGRADED, False, Reason.AS_WISHED, "nothing is there that could be lost"),
        ]
    return [
        *verdicts,
        Verdict(ConditionType.PROGRESSING, not is_final, reason, message),
        Verdict(ConditionType.KV_SHARING, None, reason, "not judged while the resource cannot be written"),
        Verdict(extra, True, reason, message),
    ]


def judge_start() -> list[Verdict]:
    """Conditions at first sight, before anything is written: no tool may take a new resource for a ready one."""
    message = "the operator has seen this resource and makes its children"
    return [
        Verdict(ConditionType.READY, False, Reason.STARTING, message),
        Verdict(ConditionType.RECONCILING, True, Reason.STARTING, message),
    ]


_TRANSIENT: Final = (ConditionType.RECONCILING, ConditionType.STALLED)


def merge_conditions(old: Iterable[Manifest], verdicts: list[Verdict], generation: int, now: str) -> list[Manifest]:
    """The new list of conditions, Ready first. A time moves only when a status flips; what was not judged stays."""
    before = {condition["type"]: condition for condition in old}
    judged = {verdict.type for verdict in verdicts}
    out = []
    for verdict in verdicts:
        known = before.get(verdict.type)
        flipped = known is None or known["status"] != verdict.status
        out.append(
            {
                "type": verdict.type.value,
                "status": verdict.status,
                "observedGeneration": generation,
                "lastTransitionTime": now if flipped or known is None else known["lastTransitionTime"],
                "reason": verdict.reason.value,
                "message": verdict.message[:_MAX_MESSAGE],
            }
        )
    kept = [c for c in before.values() if c["type"] not in judged and c["type"] not in _TRANSIENT]
    return out + kept


def _parts(seen: Observation) -> list[Part]:
    return [seen.parts[component] for component in _ORDER if component in seen.parts]


def _tell(part: Part) -> str:
    """One part in a few words, with its pods' first complaint."""
    if not part.exists:
        return f"{part.component} is not there yet"
    old = part.replicas - part.updated
    words = f"{part.component}: {part.ready} of {part.wished} pods ready"
    if old > 0:
        words += f", {old} of an old revision"
    if part.failures:
        words += f" ({part.failures[0]})"
    return words
