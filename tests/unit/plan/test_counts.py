"""How many replicas are run: whose wish counts, what a scaler begins with, and what is held back."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from disagg_operator.api.names import FIELD_MANAGER, SCALER_KIND, Component
from disagg_operator.api.resource import Ratio
from disagg_operator.build.inputs import Counts
from disagg_operator.plan.counts import decide_counts, hold_in_band, list_count_holders
from disagg_operator.status.reasons import Reason
from hypothesis import assume, given
from hypothesis import strategies as st
from unit.build.samples import build, make

Json = dict[str, Any]
PREFILL, DECODE = Component.PREFILL, Component.DECODE
BOTH = frozenset({PREFILL, DECODE})
SCALED: Json = {"prefill": {"scaling": {}}, "decode": {"scaling": {}}}
FIELDS: Json = {"f:spec": {"f:replicas": {}}}


def scaler(role: str, replicas: int) -> Json:
    return {"kind": SCALER_KIND, "metadata": {"name": f"llama-{role}"}, "spec": {"replicas": replicas}}


def workload(role: str, count: int, *, by: str = FIELD_MANAGER, kind: str = "Deployment", **status: Any) -> Json:
    """A workload whose count somebody wrote, and whose rollout is over unless its status says otherwise."""
    entry = {"manager": by, "operation": "Apply", "fieldsV1": FIELDS}
    done = {"observedGeneration": 1, "replicas": count, "updatedReplicas": count}
    return {
        "kind": kind,
        "metadata": {"name": f"llama-{role}", "generation": 1, "managedFields": [entry]},
        "spec": {"replicas": count},
        "status": {**done, **status},
    }


def counts(spec: Json, *there: Json) -> tuple[int, int]:
    decided = decide_counts(make(spec), there).counts
    return decided.prefill, decided.decode


def test_what_is_written_is_run_whatever_is_there() -> None:
    assert counts({}) == (1, 1)
    spec = {"prefill": {"replicas": 0}, "decode": {"replicas": 4}}
    rolling = workload("decode", 9, updatedReplicas=1)
    assert counts(spec, scaler("decode", 7), rolling) == (0, 4), "the user makes it smaller when the user wants"


def test_a_scaler_owns_the_count_while_there_is_scaling() -> None:
    assert counts(SCALED, scaler("decode", 7)) == (1, 7)
    assert counts(SCALED, scaler("decode", 0), workload("decode", 3)) == (1, 0)
    bounds = {"decode": {"scaling": {"minReplicas": 2, "maxReplicas": 4}}}
    assert counts(bounds, scaler("decode", 9)) == (1, 9), "bounds are the autoscaler's business"


@pytest.mark.parametrize(
    ("least", "there", "seed"),
    [
        (1, [], 1),
        (3, [], 3),
        (0, [], 1),
        (1, [workload("decode", 5)], 5),
        (1, [workload("decode", 5, kind="LeaderWorkerSet")], 5),
        (1, [workload("decode", 0)], 1),
        (0, [workload("decode", 0)], 0),
        (4, [workload("decode", 2)], 2),
    ],
)
def test_a_new_scaler_begins_with_what_runs(least: int, there: list[Json], seed: int) -> None:
    decision = decide_counts(make({"decode": {"scaling": {"minReplicas": least}}}), there)
    assert decision.seeds == {"llama-decode": seed}
    assert decision.counts.decode == seed


ROLLING: list[Json] = [
    {"updatedReplicas": 1},
    {"replicas": 5, "updatedReplicas": 4},
    {"observedGeneration": 0},
]


@pytest.mark.parametrize("status", ROLLING, ids=str)
def test_no_scaler_makes_a_role_smaller_in_the_middle_of_a_rollout(status: Json) -> None:
    rolling = workload("decode", 4, **status)
    decision = decide_counts(make(SCALED), [scaler("decode", 2), rolling])
    assert decision.counts.decode == 4
    (limit,) = decision.limits
    assert limit.reason is Reason.ROLLOUT_IN_PROGRESS
    assert "dinfs/llama-decode asks for 2 and 4 are run" in limit.message
    assert counts(SCALED, scaler("decode", 6), rolling) == (1, 6), "larger it may be"
    stuck = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
    assert counts(SCALED, scaler("decode", 2), workload("decode", 4, **status, conditions=stuck)) == (1, 2)


def test_a_count_of_somebody_else_is_no_count_to_hold_on_to() -> None:
    drifted = workload("decode", 20, by="somebody", updatedReplicas=1)
    assert counts(SCALED, scaler("decode", 2), drifted) == (1, 2)
    guarded = {**SCALED, "scaling": {"ratio": {"min": 0.25}}}
    assert counts(guarded, scaler("decode", 30), drifted, workload("prefill", 1)) == (1, 4)


def test_what_the_ratio_holds_is_told() -> None:
    there = [scaler("prefill", 1), workload("prefill", 1), scaler("decode", 9), workload("decode", 2)]
    decision = decide_counts(make({**SCALED, "scaling": {"ratio": {"min": 0.25, "max": 1}}}), there)
    assert decision.counts == Counts(1, 4)
    (limit,) = decision.limits
    assert limit.reason is Reason.RATIO_GUARD
    assert "dinfs/llama-decode asks for 9 and 4 are run" in limit.message
    assert "(min 0.25, max 1)" in limit.message


def test_a_rollout_is_no_way_round_the_ratio_nor_the_ratio_round_a_rollout() -> None:
    ratio = {**SCALED, "scaling": {"ratio": {"min": 0.5, "max": 1}}}
    rolling = workload("prefill", 4, updatedReplicas=1)
    there = [scaler("prefill", 1), rolling, scaler("decode", 1), workload("decode", 4)]
    assert counts(ratio, *there) == (4, 4), "decode waits for prefill, which waits for its rollout"


def test_a_role_that_its_autoscaler_cannot_wake_is_told() -> None:
    def reasons(least: int, replicas: int, **scaling: Any) -> list[Reason]:
        spec = {"decode": {"scaling": {"minReplicas": least, "maxReplicas": 3, **scaling}}}
        return [limit.reason for limit in decide_counts(make(spec), [scaler("decode", replicas)]).limits]

    by_cpu, by_queue = [{"type": "Resource"}], [{"type": "External"}]
    assert reasons(1, 0, metrics=by_cpu) == [Reason.CANNOT_WAKE]
    assert reasons(1, 0, metrics=by_queue) == [Reason.CANNOT_WAKE], "at zero it reads nothing unless zero is its bound"
    assert reasons(0, 0, metrics=by_queue) == []
    assert reasons(1, 1, metrics=by_cpu) == []
    assert reasons(1, 0) == [], "whoever scales it by hand can wake it by hand"


def test_holders_of_counts_are_named_for_scaled_roles_alone() -> None:
    spec = {"prefill": {"scaling": {}, "parallelism": {"tensor": 2, "nodes": 2}}}
    resource = make(spec)
    children = {(child["apiVersion"], child["kind"], child["metadata"]["name"]) for child in build(resource).children}
    holders = {(held["apiVersion"], held["kind"], held["metadata"]["name"]) for held in list_count_holders(resource)}
    assert {kind for _, kind, _ in holders} == {SCALER_KIND, "LeaderWorkerSet"}
    assert holders <= children
    assert list_count_holders(make()) == []


# The band.

CASES: dict[str, tuple[tuple[int, int], tuple[int, int], dict[str, float], tuple[int, int]]] = {
    "in-the-band": ((2, 4), (1, 4), {"min": 0.25, "max": 1}, (2, 4)),
    "growing-decode-is-held": ((1, 9), (1, 2), {"min": 0.25}, (1, 4)),
    "growing-prefill-is-held": ((9, 2), (1, 2), {"max": 2}, (4, 2)),
    "shrinking-prefill-is-held": ((1, 8), (2, 8), {"min": 0.25}, (2, 8)),
    "shrinking-decode-is-held": ((8, 1), (8, 4), {"max": 2}, (8, 4)),
    "both-shrink-together": ((1, 4), (2, 8), {"min": 0.25, "max": 0.25}, (1, 4)),
    "who-shrinks-is-held-first": ((1, 10), (4, 4), {"min": 0.5}, (4, 8)),
    "zero-is-free": ((0, 9), (1, 2), {"min": 0.25}, (0, 9)),
    "waking-towards-the-band": ((1, 8), (0, 8), {"min": 0.5}, (1, 8)),
    "a-new-band-moves-nothing": ((8, 1), (8, 1), {"max": 2}, (8, 1)),
    "outside-only-towards-it": ((9, 1), (8, 1), {"max": 2}, (8, 1)),
    "towards-it-is-free": ((5, 1), (8, 1), {"max": 2}, (5, 1)),
    "from-nothing": ((4, 1), (0, 0), {"max": 1}, (1, 1)),
    "no-whole-number-fits": ((3, 3), (1, 2), {"min": 0.5, "max": 0.5}, (1, 3)),
    "a-tenth-is-a-tenth": ((3, 30), (3, 30), {"min": 0.1, "max": 0.1}, (3, 30)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_band(case: str) -> None:
    wished, present, ratio, held = CASES[case]
    assert hold_in_band(Counts(*wished), Counts(*present), Ratio(**ratio), BOTH) == Counts(*held)


def test_a_written_count_is_never_held() -> None:
    ratio = Ratio(min=0.25)
    assert hold_in_band(Counts(1, 9), Counts(1, 2), ratio, frozenset({PREFILL})) == Counts(1, 9)
    assert hold_in_band(Counts(1, 9), Counts(3, 9), ratio, frozenset({DECODE})) == Counts(1, 9)
    assert hold_in_band(Counts(1, 9), Counts(1, 2), ratio, frozenset({DECODE})) == Counts(1, 4)


COUNT = st.integers(0, 40)
PAIRS = st.builds(Counts, COUNT, COUNT)
BOUND = st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])
BANDS = st.one_of(
    st.builds(lambda bound: Ratio(min=bound), BOUND),
    st.builds(lambda bound: Ratio(max=bound), BOUND),
    st.builds(lambda one, other: Ratio(min=min(one, other), max=max(one, other)), BOUND, BOUND),
)
HELD = st.sets(st.sampled_from([PREFILL, DECODE])).map(frozenset)


def is_in_band(pair: Counts, ratio: Ratio) -> bool:
    least, most = Fraction(str(ratio.min or 0)), Fraction(str(ratio.max or 10000))
    return 0 in (pair.prefill, pair.decode) or least <= Fraction(pair.prefill, pair.decode) <= most


@given(PAIRS, PAIRS, BANDS, HELD)
def test_every_role_stays_between_what_runs_and_what_is_wished(
    wished: Counts, present: Counts, ratio: Ratio, scaled: frozenset[Component]
) -> None:
    held = hold_in_band(wished, present, ratio, scaled)
    for role in BOTH:
        ends = (wished.of(role), max(1, present.of(role)) if wished.of(role) else 0)
        assert min(ends) <= held.of(role) <= max(ends)
        assert held.of(role) == wished.of(role) or role in scaled
        assert (held.of(role) == 0) == (wished.of(role) == 0)


@given(PAIRS, PAIRS, BANDS, HELD)
def test_what_is_held_once_is_held_the_same_again(
    wished: Counts, present: Counts, ratio: Ratio, scaled: frozenset[Component]
) -> None:
    once = hold_in_band(wished, present, ratio, scaled)
    assert hold_in_band(wished, once, ratio, scaled) == once


@given(PAIRS, PAIRS, BANDS)
def test_from_inside_the_band_nobody_is_scaled_out_of_it_while_a_whole_number_fits(
    wished: Counts, present: Counts, ratio: Ratio
) -> None:
    assume(is_in_band(present, ratio) and present.prefill and present.decode)
    held = hold_in_band(wished, present, ratio, BOTH)
    if not is_in_band(held, ratio):
        kept_back = [role for role in BOTH if held.of(role) != wished.of(role)]
        assert kept_back
        for role in kept_back:
            others = (replace(held, **{role.value: number}) for number in range(1, 500))
            assert not any(is_in_band(other, ratio) for other in others)
