"""One reconcile: read everything, decide, write what differs, report once, then tell.

Nothing is remembered between two reconciles. Each one starts from what the API server has now, so that a crash, a
lost event or a stale read costs time and nothing else.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from disagg_operator.api.names import (
    KIND,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGED_BY,
    PORT_MASTER_ADMIN,
    Component,
    child_name,
)
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.desired import build_desired
from disagg_operator.build.inputs import ClusterFacts, Desired, Problem, service_host
from disagg_operator.build.problems import find_problems
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import CHILDREN, EVENT, LEADER_WORKER_SET, POD, POD_MONITOR, RESOURCE, kind_of
from disagg_operator.kube.master import count_segments
from disagg_operator.metrics import Metrics
from disagg_operator.plan.changes import Changes, object_key, plan_changes
from disagg_operator.plan.pins import PinDecision, decide_pins
from disagg_operator.settings import Settings
from disagg_operator.status.conditions import Expectation, Verdict, judge, judge_halt
from disagg_operator.status.observation import Observation, observe_part, pods_of
from disagg_operator.status.reasons import ConditionType, Reason
from disagg_operator.status.report import Event, build_status, halted_status, plan_events, with_conditions

Manifest = dict[str, Any]
_log = logging.getLogger(__name__)

# How soon to look again: while something moves, and when all is settled (the master is asked then, nothing is written).
_SOON: Final = 5.0
_SETTLED: Final = 60.0


@dataclass(frozen=True)
class Key:
    """Which resource."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """As kubectl writes it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Reconciler:
    """What every reconcile needs: the client, the settings, what the cluster offers, and the counters."""

    client: KubeClient
    settings: Settings
    facts: ClusterFacts
    metrics: Metrics

    async def reconcile(self, key: Key) -> float | None:
        """Bring one resource to its wish. Returns seconds after which to look again; raises ApiError to be retried."""
        body = await self.client.get(RESOURCE, key.namespace, key.name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            return None  # Owner references let the garbage collector do the rest.
        try:
            resource = DisaggregatedInference.from_object(body)
        except ValidationError as error:
            return await self._halt(body, None, Reason.INVALID_SPEC, tell_validation(error), is_final=True)
        problems = find_problems(resource, self.facts)
        if problems:
            return await self._halt(body, resource, Reason.INVALID_SPEC, tell_problems(problems), is_final=True)
        return await self._bring_about(key, body, resource)

    async def _bring_about(self, key: Key, body: Manifest, resource: DisaggregatedInference) -> float | None:
        there, pods = await self._read_children(key)
        uid = resource.metadata.uid
        records = [child for child in there if child["kind"] == "ControllerRevision" and is_owned(child, uid)]
        decision = decide_pins(resource, records, self.settings.pins)
        desired = build_desired(resource, decision.pins, self.facts)
        wanted = (*decision.records, *desired.children)
        there += await self._read_unlabelled(key, wanted, there)
        changes = plan_changes(wanted, there, uid, KIND)
        if changes.conflicts:
            message = (
                f"{', '.join(changes.conflicts)} exists and belongs to somebody else; it is not touched. "
                "Rename or remove it, or rename this resource"
            )
            return await self._halt(body, resource, Reason.RESOURCE_CONFLICT, message, is_final=False)
        if changes.leaving:
            message = f"{', '.join(changes.leaving)} of an earlier resource of this name must go first"
            return await self._halt(body, resource, Reason.WAITING_FOR_OLD_CHILDREN, message, is_final=False, again=1.0)
        live, refusals = await self._write(changes)
        return await self._report(body, resource, desired, decision, live, pods, refusals)

    async def _read_children(self, key: Key) -> tuple[list[Manifest], list[Manifest]]:
        """Every object that carries this resource's labels, and its pods."""
        selector = f"{LABEL_NAME}={key.name},{LABEL_MANAGED_BY}={MANAGED_BY}"
        kinds = [*CHILDREN]
        if self.facts.has_pod_monitor:
            kinds.append(POD_MONITOR)
        if self.facts.has_leader_worker_set:
            kinds.append(LEADER_WORKER_SET)
        reads = [self.client.list(kind, key.namespace, selector) for kind in kinds]
        pods, *lists = await asyncio.gather(self.client.list(POD, key.namespace, f"{LABEL_NAME}={key.name}"), *reads)
        return [item for items in lists for item in items], pods

    async def _read_unlabelled(self, key: Key, wanted: tuple[Manifest, ...], there: list[Manifest]) -> list[Manifest]:
        """Objects of the desired names that our labels do not show: somebody else's, or with labels taken off."""
        known = {object_key(child) for child in there}
        missing = [manifest for manifest in wanted if object_key(manifest) not in known]
        found = await asyncio.gather(
            *(self.client.get(kind_of(child), key.namespace, child["metadata"]["name"]) for child in missing)
        )
        return [
            {"apiVersion": child["apiVersion"], "kind": child["kind"], **item}
            for child, item in zip(missing, found, strict=True)
            if item is not None
        ]

    async def _write(self, changes: Changes) -> tuple[dict[tuple[str, str], Manifest], list[str]]:
        """Apply and prune. One refusal does not keep the others back; returns the live objects and the refusals."""
        live = dict(changes.live)
        refusals: list[str] = []
        for manifest in changes.applies:
            try:
                live[object_key(manifest)] = await self.client.apply(manifest)
            except ApiError as error:
                if not (error.is_forbidden or error.is_invalid):
                    raise
                refusals.append(f"{'/'.join(object_key(manifest))}: {error.message}")
                continue
            self.metrics.writes.labels("apply", manifest["kind"]).inc()
            _log.info(
                "applied %s %s/%s",
                *object_key(manifest)[:1],
                manifest["metadata"]["namespace"],
                object_key(manifest)[1],
            )
        for manifest in changes.deletions:
            await self.client.delete(manifest)
            live.pop(object_key(manifest), None)
            self.metrics.writes.labels("delete", manifest["kind"]).inc()
            _log.info("deleted %s %s", *object_key(manifest))
        return live, refusals

    async def _report(  # the pieces of one status; they have no common home
        self,
        body: Manifest,
        resource: DisaggregatedInference,
        desired: Desired,
        decision: PinDecision,
        live: dict[tuple[str, str], Manifest],
        pods: list[Manifest],
        refusals: list[str],
    ) -> float | None:
        seen = await self._observe(resource, desired, live, pods)
        expected = Expectation(
            desired.segments,
            has_own_connector=has_own_connector(resource),
            has_managed_master=resource.spec.kv_store.master.external is None,
            is_update_available=decision.is_update_available,
        )
        status = build_status(resource, desired, seen, expected)
        if refusals:
            verdicts = judge_halt(Reason.API_ERROR, "the API server refused " + "; ".join(refusals), is_final=False)
        else:
            verdicts = judge(seen, expected)
        await self._write_status(body, status, verdicts)
        states = {verdict.type: verdict.is_true for verdict in verdicts}
        is_settled = states.get(ConditionType.READY) is True and states.get(ConditionType.KV_SHARING) is not None
        return _SETTLED if is_settled and not refusals else _SOON

    async def _observe(
        self,
        resource: DisaggregatedInference,
        desired: Desired,
        live: dict[tuple[str, str], Manifest],
        pods: list[Manifest],
    ) -> Observation:
        workloads = {
            child["metadata"]["name"]: child
            for child in desired.children
            if child["kind"] in ("Deployment", "LeaderWorkerSet")
        }
        parts = {}
        for component in Component:
            manifest = workloads.get(child_name(resource.metadata.name, component))
            if manifest is not None:
                parts[component] = observe_part(
                    component, manifest, live.get(object_key(manifest)), pods_of(component, pods)
                )
        segments = None
        if Component.MASTER in parts and parts[Component.MASTER].ready > 0:
            host = service_host(resource, Component.MASTER)
            segments = await count_segments(f"http://{host}:{PORT_MASTER_ADMIN}")
        return Observation(parts, segments)

    async def _halt(
        self,
        body: Manifest,
        resource: DisaggregatedInference | None,
        reason: Reason,
        message: str,
        *,
        is_final: bool,
        again: float | None = None,
    ) -> float | None:
        """Report why nothing is written. A final halt ends when the user changes the spec."""
        old = body.get("status", {})
        status = halted_status(resource, old) if resource is not None else {**old}
        status = {key: value for key, value in status.items() if key != "conditions"}
        status["observedGeneration"] = body["metadata"]["generation"]
        await self._write_status(body, status, judge_halt(reason, message, is_final=is_final))
        return None if is_final else (again or _SOON)

    async def _write_status(self, body: Manifest, status: Manifest, verdicts: list[Verdict]) -> None:
        """Write the status once, when it differs; then post events for what flipped."""
        metadata, old = body["metadata"], body.get("status", {})
        new = with_conditions(status, old, verdicts, now_text())
        if new == old:
            return
        try:
            await self.client.patch_status(RESOURCE, metadata["namespace"], metadata["name"], new)
        except ApiError as error:
            if error.status == 404:
                return
            raise
        for event in plan_events(old, new):
            await self._post(body, event)

    async def _post(self, body: Manifest, event: Event) -> None:
        """Post one event. It is a courtesy: a refusal is logged and nothing more."""
        metadata = body["metadata"]
        now = now_text()
        manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": RESOURCE.api_version,
                "kind": RESOURCE.kind,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:1024],
            "source": {"component": MANAGED_BY},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.client.create(EVENT, metadata["namespace"], manifest)
        except ApiError as error:
            _log.warning("event %s for %s was not posted: %s", event.reason, metadata["name"], error.message)


def now_text() -> str:
    """The present second, as Kubernetes writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_owned(child: Manifest, uid: str) -> bool:
    """Whether a resource of this UID controls an object."""
    owners = child["metadata"].get("ownerReferences", [])
    return any(owner.get("controller") and owner["uid"] == uid for owner in owners)


def has_own_connector(resource: DisaggregatedInference) -> bool:
    """Whether both roles run the connector that the operator chose."""
    roles = (resource.spec.prefill, resource.spec.decode)
    return not any("kv_connector" in (role.kv_transfer_config or {}) for role in roles)


def tell_problems(problems: tuple[Problem, ...]) -> str:
    """All problems of a resource, one after the other."""
    return "; ".join(str(problem) for problem in problems)


def tell_validation(error: ValidationError) -> str:
    """What pydantic found, by field. Values are not repeated: one may be a secret in a wrong place."""
    found = [f"spec.{'.'.join(str(part) for part in fault['loc'][1:])}: {fault['msg']}" for fault in error.errors()]
    return "; ".join(found)
