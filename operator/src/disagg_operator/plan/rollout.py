"""Which workloads do not go on with their rollout now: all while the user pauses, or the role that is ahead.

Deployments replace pods by themselves, within maxSurge and maxUnavailable. When KV changes, both roles are replaced,
and old and new pods share nothing; so the two rollouts have to keep pace, or old decode pods are left without prefill.
A role waits while the share of it that is new is larger than the share of the other that is new and ready. It is one
step ahead at most. The role behind never waits, so a rollout comes to its end, and its deadline counts for whoever is
slow. All of this is seen from the pods; nothing is remembered. docs/adr/0009-rollouts.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from disagg_operator.api.names import (
    ENGINE_ROLES,
    LABEL_KV_REVISION,
    LABEL_REVISION,
    LABEL_ROLE,
    WORKLOADS,
    Component,
    child_name,
)
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.inputs import Counts, Desired
from disagg_operator.status.observation import is_ready

Manifest = dict[str, Any]


@dataclass(frozen=True)
class RolloutDecision:
    """The children as they are to be written now, and the roles that wait for the other."""

    children: tuple[Manifest, ...]
    held: frozenset[Component] = frozenset()


@dataclass(frozen=True)
class Progress:
    """How far one role is: pods wished, pods of the wished revision, those of them that are ready, and old ones.

    `old` counts ready pods of another KV revision. Of a replica that spans nodes, its leader counts.
    """

    wished: int
    updated: int
    ready: int
    old: int

    @property
    def share_updated(self) -> Fraction:
        """The part of the role that is new, ready or not."""
        return _share(self.updated, self.wished)

    @property
    def share_ready(self) -> Fraction:
        """The part of the role that is new and ready."""
        return _share(self.ready, self.wished)


def _share(count: int, wished: int) -> Fraction:
    return Fraction(min(count, wished), wished) if wished else Fraction(1)


def decide_rollout(
    resource: DisaggregatedInference, desired: Desired, counts: Counts, pods: Iterable[Manifest]
) -> RolloutDecision:
    """Let workloads go on, or wait: by the user's pause, or because their role is ahead."""
    if resource.spec.paused:
        return RolloutDecision(_hold_all(desired.children))
    progress = _observe_progress(desired, counts, pods)
    held = plan_holds(progress)
    return RolloutDecision(_hold_roles(resource.metadata.name, desired.children, progress, held), held)


def plan_holds(progress: Mapping[Component, Progress]) -> frozenset[Component]:
    """The roles that wait. None when one of them has no old pod that serves: then there is no pace to keep."""
    if any(role.old == 0 for role in progress.values()):
        return frozenset()
    behind = min(progress, key=lambda role: (progress[role].share_ready, progress[role].share_updated))
    return frozenset(
        role for role in progress if role != behind and progress[role].share_updated > progress[behind].share_ready
    )


def _observe_progress(desired: Desired, counts: Counts, pods: Iterable[Manifest]) -> dict[Component, Progress]:
    """Read each role's progress off its pods."""
    there = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return {role: _observe_role(desired, counts.of(role), role, there) for role in ENGINE_ROLES}


def _observe_role(desired: Desired, wished: int, role: Component, pods: list[Manifest]) -> Progress:
    updated = ready = old = 0
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        if labels.get(LABEL_ROLE) != role:
            continue
        is_new = labels.get(LABEL_REVISION) == desired.revisions[role.value]
        updated += is_new
        ready += is_new and is_ready(pod)
        old += labels.get(LABEL_KV_REVISION) != desired.kv_revision and is_ready(pod)
    return Progress(wished, updated, ready, old)


def _hold_all(children: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Children whose workloads replace nothing, as `spec.paused` asks. Counts go on to be followed."""
    return tuple(_hold(child, 0) if child["kind"] in WORKLOADS else child for child in children)


def _hold_roles(
    name: str, children: Iterable[Manifest], progress: Mapping[Component, Progress], held: frozenset[Component]
) -> tuple[Manifest, ...]:
    """Children of the resource `name`, with the workloads of held roles waiting where they are."""
    updated = {child_name(name, role): progress[role].updated for role in held}
    return tuple(
        _hold(child, updated[child["metadata"]["name"]])
        if child["kind"] in WORKLOADS and child["metadata"]["name"] in updated
        else child
        for child in children
    )


def _hold(workload: Manifest, updated: int) -> Manifest:
    """The workload, waiting with `updated` of its replicas replaced."""
    spec = workload["spec"]
    if workload["kind"] == "Deployment":
        return {**workload, "spec": {**spec, "paused": True}}
    # Groups from this ordinal on are new.
    rolling = {"partition": max(0, spec["replicas"] - updated), **spec["rolloutStrategy"]["rollingUpdateConfiguration"]}
    strategy = {**spec["rolloutStrategy"], "rollingUpdateConfiguration": rolling}
    return {**workload, "spec": {**spec, "rolloutStrategy": strategy}}
