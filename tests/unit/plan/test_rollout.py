"""Both roles' rollouts keep pace when KV changes: golden sequences, and what holds for every rollout."""

from dataclasses import replace
from typing import Any

import pytest
from disagg_operator.api.names import LABEL_KV_REVISION, LABEL_REVISION, Component
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.inputs import Counts, Desired
from disagg_operator.plan.rollout import RolloutDecision, decide_rollout
from hypothesis import given
from hypothesis import strategies as st
from unit.build.samples import build, child, make
from unit.plan.fleet import Fleet, Role

Json = dict[str, Any]
PREFILL, DECODE = Component.PREFILL, Component.DECODE
FIRST, LAST = 0, -1
EVEN = (1, 0)
IN_PLACE = (0, 1)

# Old/starting/ready pods of prefill, then of decode; a star waits for the other. One line each time that a pod became
# ready, of prefill when it may be (FIRST), or of decode (LAST).
GOLDEN = [
    (1, 1, EVEN, FIRST, ["1/1/0 1/1/0*", "0/0/1 1/1/0", "0/0/1 0/0/1"]),
    (1, 1, EVEN, LAST, ["1/1/0 1/1/0*", "1/1/0 1/0/1*", "0/0/1 0/0/1"]),
    (2, 2, EVEN, FIRST, ["2/1/0 2/1/0*", "1/1/1* 2/1/0", "1/0/2* 2/1/0", "1/0/2* 1/1/1", "0/0/2 0/0/2"]),
    (
        2,
        6,
        EVEN,
        FIRST,
        [
            "2/1/0* 6/1/0",
            "2/0/1* 6/1/0",
            "2/0/1* 5/1/1",
            "2/0/1* 4/1/2",
            "1/1/1* 3/1/3",
            "1/0/2* 3/1/3",
            "1/0/2* 2/1/4",
            "1/0/2* 1/1/5",
            "0/0/2 0/0/6",
        ],
    ),
    (
        4,
        2,
        IN_PLACE,
        LAST,
        [
            "3/1/0 1/1/0*",
            "3/1/0 1/0/1*",
            "2/1/1 1/0/1*",
            "1/1/2 0/1/1",
            "1/1/2 0/0/2",
            "0/1/3 0/0/2",
            "0/0/4 0/0/2",
        ],
    ),
    (0, 3, EVEN, FIRST, ["0/0/0 3/1/0", "0/0/0 2/1/1", "0/0/0 1/1/2", "0/0/0 0/0/3"]),
]


def run(fleet: Fleet, picks: list[int]) -> None:
    """Roll to the end; `picks` chooses whose pod becomes ready next, the last one again and again."""
    fleet.settle()
    while able := fleet.can_become_ready():
        pick = picks[0] if len(picks) == 1 else picks.pop(0)
        fleet.become_ready(able[pick % len(able)])
        fleet.settle()


@pytest.mark.parametrize(("prefill", "decode", "rollout", "pick", "steps"), GOLDEN)
def test_the_steps_of_a_rollout(
    prefill: int, decode: int, rollout: tuple[int, int], pick: int, steps: list[str]
) -> None:
    fleet = Fleet.of(Role(prefill, *rollout), Role(decode, *rollout))
    run(fleet, [pick])
    assert fleet.steps == steps


@st.composite
def roles(draw: st.DrawFn) -> Role:
    wished = draw(st.integers(0, 9))
    surge, unavailable = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any))
    return Role(wished, surge, unavailable)


@given(roles(), roles(), st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_no_more_pods_than_allowed_no_fewer_than_promised_and_it_ends(
    prefill: Role, decode: Role, picks: list[int]
) -> None:
    fleet = Fleet.of(prefill, decode)
    fleet.settle()
    while able := fleet.can_become_ready():
        fleet.become_ready(able[(picks.pop() if len(picks) > 1 else picks[0]) % len(able)])
        fleet.settle()
        for role in fleet.roles.values():
            assert role.pods <= role.wished + role.surge
            assert role.serving >= role.wished - role.unavailable
        _assert_pace(fleet)
    assert fleet.is_done


def _assert_pace(fleet: Fleet) -> None:
    """While both have old pods that serve, neither is further ahead than by the step that it was allowed to begin."""
    first, second = fleet.roles.values()
    if not first.old or not second.old:
        return
    for ahead, behind in ((first, second), (second, first)):
        step = ahead.surge + ahead.unavailable + 1
        assert ahead.progress.updated <= behind.progress.share_ready * ahead.wished + step


@given(roles(), roles())
def test_a_revision_that_never_becomes_ready_leaves_the_old_serving(prefill: Role, decode: Role) -> None:
    fleet = Fleet.of(replace(prefill, broken=True), decode)
    run(fleet, [FIRST])
    broken, other = fleet.roles[PREFILL], fleet.roles[DECODE]
    assert broken.serving >= broken.wished - broken.unavailable
    if broken.old and other.wished > other.surge + other.unavailable + 1:
        assert other.old, "the other role waits for it, with pods that can still be paired"


# What the decision is read from, and how it is written.

OLD: Json = {"engine": {"args": ["--block-size", "16"]}}
NEW: Json = {"engine": {"args": ["--block-size", "32"]}}


def pod(desired: Desired, role: str, *, ready: bool = True, leaving: bool = False) -> Json:
    labels = child(desired, "Deployment", f"llama-{role}")["spec"]["template"]["metadata"]["labels"]
    metadata: Json = {"name": "pod", "labels": labels}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def decide(spec: Json, pods: list[Json], replicas: int = 2) -> RolloutDecision:
    resource: DisaggregatedInference = make(spec)
    return decide_rollout(resource, build(resource), Counts(replicas, replicas), pods)


def deployments(decision: RolloutDecision) -> set[str]:
    """Names of the Deployments that wait."""
    found = [each for each in decision.children if each["kind"] == "Deployment"]
    return {each["metadata"]["name"] for each in found if each["spec"].get("paused")}


def test_the_role_that_is_ahead_waits() -> None:
    old, new = build(make(OLD)), build(make(NEW))
    serving = [pod(old, role) for role in ("prefill", "prefill", "decode", "decode")]
    assert deployments(decide(NEW, serving)) == set(), "both may begin"
    ahead = [*serving, pod(new, "decode"), pod(new, "prefill", ready=False)]
    decision = decide(NEW, ahead)
    assert deployments(decision) == {"llama-decode"}
    assert decision.held == {DECODE}
    assert deployments(decide(NEW, [*ahead, pod(new, "prefill")])) == {"llama-prefill"}
    assert deployments(decide(OLD, ahead)) == set(), "back again: what is there is what is wished"


def test_a_pod_that_leaves_is_not_there_any_more() -> None:
    old, new = build(make(OLD)), build(make(NEW))
    pods = [pod(old, "prefill", leaving=True), pod(old, "decode"), pod(new, "decode"), pod(new, "prefill", ready=False)]
    assert decide(NEW, pods).held == set(), "no old prefill serves, so there is no pace to keep"


def test_a_change_of_one_role_keeps_no_pace() -> None:
    before = build(make({}))
    changed: Json = {"decode": {"args": ["--max-num-seqs", "7"]}}
    after = build(make(changed))
    assert before.kv_revision == after.kv_revision
    pods = [*(pod(before, role) for role in ("prefill", "decode", "decode")), pod(after, "decode")]
    assert decide(changed, pods).held == set()


def test_a_pause_holds_every_workload() -> None:
    decision = decide({"paused": True}, [])
    assert deployments(decision) == {"llama-prefill", "llama-decode", "llama-master", "llama-router"}
    assert decision.held == set()
    assert deployments(decide({"paused": False}, [])) == set()


def test_a_pause_is_no_part_of_a_revision() -> None:
    assert build(make({"paused": True})).revisions == build(make({})).revisions


def test_replicas_that_span_nodes_wait_by_their_partition() -> None:
    nodes: Json = {"prefill": {"replicas": 3, "parallelism": {"tensor": 2, "nodes": 2}}}
    resource = make({**NEW, **nodes})
    new, old = build(resource), build(make({**OLD, **nodes}))
    group = child(new, "LeaderWorkerSet", "llama-prefill")["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    labels = group["metadata"]["labels"]
    older = {**labels, LABEL_REVISION: "older", LABEL_KV_REVISION: old.kv_revision}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods: list[Json] = [{"metadata": {"name": "p", "labels": each}, "status": status} for each in (labels, older)]
    pods += [pod(old, "decode"), pod(new, "decode", ready=False)]
    decision = decide_rollout(resource, new, Counts(3, 3), pods)
    assert decision.held == {PREFILL}
    (workload,) = [each for each in decision.children if each["kind"] == "LeaderWorkerSet"]
    rolling = workload["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert rolling["partition"] == 2, "of three groups the last one is new"
