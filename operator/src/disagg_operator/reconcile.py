"""One reconcile: read everything, decide, write what differs, report once, then tell.

Nothing is remembered between two reconciles. Each one starts from what the API server has now, so that a crash, a
lost event or a stale read costs time and nothing else. docs/adr/0001-level-based-reconcile.md.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from mooncake_store_connector.problems import Problem
from pydantic import ValidationError

from disagg_operator.api.names import KIND, Component
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.desired import build_desired
from disagg_operator.build.inputs import ClusterFacts, Counts, Desired, Pins
from disagg_operator.build.problems import find_problems
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.events import post_event
from disagg_operator.kube.kinds import CONTROLLER_REVISION, RESOURCE, SCALER
from disagg_operator.kube.reading import observe, read_children, read_pods, read_unlabelled
from disagg_operator.kube.writing import Refusal, write_changes
from disagg_operator.metrics import Metrics
from disagg_operator.plan.additions import find_additions, tell_additions
from disagg_operator.plan.changes import Changes, plan_changes
from disagg_operator.plan.counts import CountDecision, decide_counts, list_count_holders
from disagg_operator.plan.drift import find_scaled_elsewhere
from disagg_operator.plan.ownership import is_child_of
from disagg_operator.plan.pins import decide_pins
from disagg_operator.plan.rollout import decide_rollout
from disagg_operator.status.conditions import Expectation, Verdict, judge, judge_halt, judge_start
from disagg_operator.status.observation import Observation
from disagg_operator.status.reasons import Reason
from disagg_operator.status.report import build_status, halted_status, is_same_status, plan_events, with_conditions
from disagg_operator.status.scaler import find_stale_scalers
from disagg_operator.workqueue import TryAgainError

Manifest = dict[str, Any]
_log = logging.getLogger(__name__)

# Seconds after which to look again at what sends no event: the master's segments, somebody else's objects.
_SETTLED: Final = 60.0
_SEGMENTS_MISSING: Final = 5.0
_CREATING: Final = 15.0
_CONFLICT: Final = 15.0
_OLD_CHILDREN: Final = 2.0
_CHANGED_MEANWHILE: Final = 0.2


@dataclass(frozen=True)
class Key:
    """Which resource."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """As kubectl writes it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Sight:
    """What was read: the resource, the objects with its labels, its pods."""

    body: Manifest
    there: list[Manifest]
    pods: list[Manifest]

    @property
    def metadata(self) -> Manifest:
        """The resource's metadata."""
        metadata: Manifest = self.body["metadata"]
        return metadata

    def own(self) -> list[Manifest]:
        """Objects that this very resource controls; not those of an earlier one of its name."""
        return [child for child in self.there if is_child_of(child, self.metadata["uid"])]


@dataclass(frozen=True)
class Plan:
    """What is to be, and the writes that lead there."""

    resource: DisaggregatedInference
    desired: Desired
    changes: Changes
    is_update_available: bool
    counted: CountDecision
    held: frozenset[Component]


@dataclass(frozen=True)
class Halt:
    """Why nothing is written. A final one ends when the user changes the spec; others are looked at `again`."""

    reason: Reason
    message: str
    again: float | None = None

    @property
    def is_final(self) -> bool:
        """Whether waiting is of no use."""
        return self.again is None


@dataclass(frozen=True)
class Reconciler:
    """What every reconcile needs: the client, the operator's own pins, what the cluster offers now, and counters."""

    client: KubeClient
    pins: Pins
    facts: Callable[[], ClusterFacts]
    metrics: Metrics

    async def reconcile(self, key: Key) -> float | None:
        """Bring one resource to its wish. Returns seconds after which to look again, None when it is gone.

        Raises TryAgainError for trouble with the API server.
        """
        try:
            body = await self.client.get(RESOURCE, key.namespace, key.name)
            if body is None or "deletionTimestamp" in body["metadata"]:
                # Owner references let the garbage collector do the rest.
                self.metrics.forget(key.namespace, key.name)
                return None
            there, pods = await asyncio.gather(
                read_children(self.client, self.facts(), body),
                read_pods(self.client, key.namespace, key.name),
            )
            return await self._bring_about(Sight(body, there, pods))
        except ApiError as error:
            if error.is_conflict:
                return _CHANGED_MEANWHILE
            raise TryAgainError(f"the API server: {error.message}", error.retry_after) from error

    async def _bring_about(self, sight: Sight) -> float | None:
        try:
            decided = await self._decide(sight)
        except ApiError:
            raise
        except Exception as error:
            # A fault of this program. The user is told, and the next event or change of the spec tries again.
            message = f"the operator failed on this resource ({error!r}); its log has more. Please report it"
            await self._halt(sight, Halt(Reason.INTERNAL_ERROR, message, _SETTLED))
            raise
        if isinstance(decided, Halt):
            return await self._halt(sight, decided)
        return await self._carry_out(sight, decided)

    async def _decide(self, sight: Sight) -> Plan | Halt:
        facts = self.facts()
        try:
            resource = DisaggregatedInference.from_object(sight.body)
        except ValidationError as error:
            return Halt(Reason.INVALID_SPEC, tell_validation(error))
        records = [child for child in sight.own() if child["kind"] == CONTROLLER_REVISION.kind]
        decision = decide_pins(resource, records, self.pins)
        problems = find_problems(resource, decision.pins, facts)
        if problems:
            return Halt(Reason.INVALID_SPEC, tell_problems(problems))
        holders = await read_unlabelled(self.client, list_count_holders(resource), sight.there)
        sight = replace(sight, there=[*sight.there, *holders])
        counted = decide_counts(resource, sight.own())
        desired = build_desired(resource, decision.pins, facts, counted.counts)
        rollout = decide_rollout(resource, desired, counted.counts, sight.pods)
        wanted = (*decision.records, *rollout.children)
        there = [*sight.there, *await read_unlabelled(self.client, wanted, sight.there)]
        changes = plan_changes(wanted, there, resource.metadata.uid, KIND)
        if changes.conflicts or changes.leaving:
            return halt_for(changes)
        has_update = decision.pins != self.pins and is_changed_by(self.pins, resource, desired, facts, counted.counts)
        return Plan(resource, desired, changes, has_update, counted, rollout.held)

    async def _carry_out(self, sight: Sight, plan: Plan) -> float | None:
        old = sight.body.get("status", {})
        if not old.get("conditions"):
            old = await self._report(sight, old, {"observedGeneration": sight.metadata["generation"]}, judge_start())
        live, refusals = await write_changes(self.client, plan.changes, plan.counted.seeds, self._count_write)
        seen = await observe(self.client, sight.metadata, plan.desired.children, live, sight.pods)
        seen = replace(seen, additions=find_additions(live))
        expected = Expectation(
            plan.desired.segments,
            has_own_connector=has_own_connector(plan.resource),
            has_managed_master=plan.resource.spec.kv_store.master.external is None,
            is_update_available=plan.is_update_available,
            limits=plan.counted.limits,
            is_paused=plan.resource.spec.paused,
            held=plan.held,
        )
        verdicts = judge_refusals(seen, refusals) if refusals else judge(seen, expected)
        await self._report(sight, old, build_status(plan.resource, plan.desired, seen, expected), verdicts)
        for scaler, status in find_stale_scalers(live, seen):
            await self.client.apply_status(SCALER, scaler["metadata"], status)
        if refusals:
            waits = [refusal.error.retry_after for refusal in refusals if refusal.error.retry_after]
            raise TryAgainError(f"refused: {'; '.join(str(refusal) for refusal in refusals)}", max(waits, default=None))
        for event in (*find_scaled_elsewhere(plan.resource, plan.changes), *tell_additions(seen.additions, old)):
            await post_event(self.client, sight.metadata, event, now_text())
        return look_again(seen, verdicts)

    async def _halt(self, sight: Sight, halt: Halt) -> float:
        """Report why nothing is written, and what an earlier spec's children do meanwhile."""
        old = sight.body.get("status", {})
        seen = await observe(self.client, sight.metadata, (), sight.own(), sight.pods)
        status = halted_status(sight.metadata["generation"], old, seen)
        await self._report(sight, old, status, judge_halt(seen, halt.reason, halt.message, is_final=halt.is_final))
        return halt.again or _SETTLED

    async def _report(self, sight: Sight, old: Manifest, status: Manifest, verdicts: list[Verdict]) -> Manifest:
        """Write the status when it differs; then post events for what flipped. Returns the new status."""
        namespace, name, now = sight.metadata["namespace"], sight.metadata["name"], now_text()
        new = with_conditions(status, old, verdicts, now)
        self.metrics.show_status(namespace, name, new)
        if is_same_status(new, old):
            return new
        await self.client.apply_status(RESOURCE, sight.metadata, new)
        for event in plan_events(old, new):
            await post_event(self.client, sight.metadata, event, now)
        return new

    def _count_write(self, verb: str, kind: str) -> None:
        self.metrics.writes.labels(verb, kind).inc()


def is_changed_by(
    pins: Pins, resource: DisaggregatedInference, desired: Desired, facts: ClusterFacts, counts: Counts
) -> bool:
    """Whether other pins would build something else. Pins with which nothing can be built are none to move to."""
    if find_problems(resource, pins, facts):
        return False
    return build_desired(resource, pins, facts, counts).children != desired.children


def now_text() -> str:
    """The present second, as Kubernetes writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def halt_for(changes: Changes) -> Halt:
    """Somebody else's objects in the way, or those of an earlier resource of this name."""
    if changes.conflicts:
        message = (
            f"{', '.join(changes.conflicts)} exists and belongs to somebody else, so it is not touched and nothing is "
            "written. Rename or remove it, or give this resource another name"
        )
        return Halt(Reason.RESOURCE_CONFLICT, message, _CONFLICT)
    message = f"{', '.join(changes.leaving)} is on its way out and must be gone first"
    return Halt(Reason.WAITING_FOR_OLD_CHILDREN, message, _OLD_CHILDREN)


def judge_refusals(seen: Observation, refusals: tuple[Refusal, ...]) -> list[Verdict]:
    """Conditions when the API server did not take some children. Content that is wrong stays wrong: Stalled."""
    message = "the API server refused " + "; ".join(str(refusal) for refusal in refusals)
    if all(refusal.error.is_invalid for refusal in refusals):
        return judge_halt(seen, Reason.CHILD_REFUSED, message, is_final=True)
    is_forbidden = any(refusal.error.is_forbidden for refusal in refusals)
    return judge_halt(seen, Reason.FORBIDDEN if is_forbidden else Reason.API_ERROR, message, is_final=False)


def look_again(seen: Observation, verdicts: list[Verdict]) -> float:
    """Seconds after which to look at what no watch tells: segments with the master, volumes that cannot be mounted."""
    if any(verdict.reason == Reason.SEGMENTS_MISSING for verdict in verdicts):
        return _SEGMENTS_MISSING
    return _CREATING if seen.is_creating else _SETTLED


def has_own_connector(resource: DisaggregatedInference) -> bool:
    """Whether both roles run the connector that the operator chose."""
    roles = (resource.spec.prefill, resource.spec.decode)
    return not any("kv_connector" in (role.kv_transfer_config or {}) for role in roles)


def tell_problems(problems: tuple[Problem, ...]) -> str:
    """All problems of a resource, one after the other."""
    return "; ".join(str(problem) for problem in problems)


def tell_validation(error: ValidationError) -> str:
    """What pydantic found, by field. Values are not repeated: one may be a secret in a wrong place."""
    found = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in error.errors()]
    return "; ".join(found)
