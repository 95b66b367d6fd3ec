"""Conditions for what can be seen, and kstatus' rules for all of them."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disagg_operator.api.names import Component
from disagg_operator.status.conditions import (
    Expectation,
    Limit,
    Verdict,
    judge,
    judge_halt,
    judge_start,
    merge_conditions,
)
from disagg_operator.status.observation import Observation, Part
from disagg_operator.status.reasons import ConditionType, Reason
from hypothesis import given
from hypothesis import strategies as st

DOCS = Path(__file__).parents[3] / "docs" / "conditions.md"
EXPECTED = Expectation({"prefill": 1, "decode": 1})
T = ConditionType


def part(component: Component, wished: int = 1, **changes: Any) -> Part:
    """A part whose rollout is done."""
    done = Part(component, wished, True, wished, wished, wished, is_observed=True, has_completed=True)
    return replace(done, **changes)


def seen(segments: int | None = 2, **parts: Part) -> Observation:
    every = {component: part(component) for component in Component} | {Component(k): v for k, v in parts.items()}
    names = None if segments is None else tuple(f"10.0.0.{number}:1" for number in range(segments))
    return Observation(every, names, segments or 0)


def verdicts(observation: Observation, expected: Expectation = EXPECTED) -> dict[ConditionType, tuple[str, Reason]]:
    return {verdict.type: (verdict.status, verdict.reason) for verdict in judge(observation, expected)}


def test_all_is_well() -> None:
    assert verdicts(seen()) == {
        T.READY: ("True", Reason.READY),
        T.AVAILABLE: ("True", Reason.AVAILABLE),
        T.PROGRESSING: ("False", Reason.SETTLED),
        T.DEGRADED: ("False", Reason.AS_WISHED),
        T.KV_SHARING: ("True", Reason.SEGMENTS_REGISTERED),
        T.SCALING_LIMITED: ("False", Reason.AS_WISHED),
        T.UPDATE_AVAILABLE: ("False", Reason.UP_TO_DATE),
    }


def test_a_paused_rollout_is_told_and_is_nothing_that_moves() -> None:
    paused, old = replace(EXPECTED, is_paused=True), part(Component.DECODE, 2, updated=0)
    assert verdicts(seen(), paused)[T.PROGRESSING] == ("False", Reason.SETTLED), "nothing waits"
    told = verdicts(seen(decode=old), paused)
    assert told[T.READY] == ("False", Reason.PAUSED)
    assert told[T.PROGRESSING] == ("False", Reason.PAUSED)
    assert told[T.AVAILABLE] == ("True", Reason.AVAILABLE)
    assert told[T.DEGRADED] == ("False", Reason.AS_WISHED)
    starting = part(Component.PREFILL, 2, ready=1)
    told = verdicts(seen(decode=old, prefill=starting), paused)
    assert told[T.READY] == ("False", Reason.DECODE_NOT_READY), "a pod is on its way all the same"
    assert told[T.PROGRESSING] == ("True", Reason.ROLLING_OUT)


def test_a_role_that_waits_for_the_other_is_named() -> None:
    half = part(Component.DECODE, 2, updated=1)
    told = {v.type: v for v in judge(seen(decode=half), replace(EXPECTED, held=frozenset({Component.DECODE})))}
    assert "decode waits, so that both roles move in proportion" in told[T.PROGRESSING].message


def test_what_is_held_back_is_told_and_is_no_trouble_of_pods() -> None:
    limits = (Limit(Reason.RATIO_GUARD, "decode waits"), Limit(Reason.CANNOT_WAKE, "prefill sleeps"))
    told = {verdict.type: verdict for verdict in judge(seen(), replace(EXPECTED, limits=limits))}
    limited = told[T.SCALING_LIMITED]
    assert (limited.status, limited.reason) == ("True", Reason.RATIO_GUARD)
    assert limited.message == "decode waits; prefill sleeps"
    assert told[T.READY].status == "True", "what is run is as it should be"


PREFILL, DECODE, MASTER = Component.PREFILL, Component.DECODE, Component.MASTER
CASES = {
    "prefill-wished-away": (
        seen(1, prefill=part(PREFILL, 0)),
        {T.READY: ("True", Reason.READY), T.DEGRADED: ("False", Reason.AS_WISHED)}
        | {T.KV_SHARING: ("False", Reason.PREFILL_SCALED_TO_ZERO), T.AVAILABLE: ("True", Reason.AVAILABLE)},
    ),
    "prefill-lost": (
        seen(1, prefill=part(PREFILL, ready=0)),
        {T.READY: ("False", Reason.PREFILL_NOT_READY), T.DEGRADED: ("True", Reason.PREFILL_NOT_READY)}
        | {T.KV_SHARING: ("False", Reason.PREFILL_NOT_READY), T.AVAILABLE: ("True", Reason.AVAILABLE)},
    ),
    "prefill-starts": (
        seen(1, prefill=part(PREFILL, ready=0, has_completed=False)),
        {T.READY: ("False", Reason.PREFILL_NOT_READY), T.DEGRADED: ("False", Reason.AS_WISHED)}
        | {T.PROGRESSING: ("True", Reason.ROLLING_OUT)},
    ),
    "decode-wished-away": (
        seen(1, decode=part(DECODE, 0)),
        {T.READY: ("True", Reason.SUSPENDED), T.AVAILABLE: ("False", Reason.SUSPENDED)}
        | {T.DEGRADED: ("False", Reason.AS_WISHED), T.KV_SHARING: ("False", Reason.DECODE_SCALED_TO_ZERO)},
    ),
    "decode-lost": (
        seen(1, decode=part(DECODE, ready=0)),
        {T.READY: ("False", Reason.DECODE_NOT_READY), T.AVAILABLE: ("False", Reason.DECODE_NOT_READY)}
        | {T.DEGRADED: ("True", Reason.DECODE_NOT_READY)},
    ),
    "master-lost": (
        seen(None, master=part(MASTER, ready=0)),
        {T.DEGRADED: ("True", Reason.MASTER_NOT_READY), T.KV_SHARING: ("False", Reason.MASTER_NOT_READY)}
        | {T.AVAILABLE: ("True", Reason.AVAILABLE)},
    ),
    "master-mute": (
        seen(None),
        {T.READY: ("True", Reason.READY), T.KV_SHARING: ("Unknown", Reason.MASTER_UNREACHABLE)},
    ),
    "segment-missing": (seen(1), {T.READY: ("True", Reason.READY), T.KV_SHARING: ("False", Reason.SEGMENTS_MISSING)}),
    "old-pods-serve": (
        seen(decode=part(DECODE, updated=0)),
        {T.READY: ("False", Reason.DECODE_NOT_READY), T.AVAILABLE: ("True", Reason.AVAILABLE)},
    ),
    "surplus-pod": (seen(decode=part(DECODE, replicas=2)), {T.READY: ("False", Reason.DECODE_NOT_READY)}),
    "controller-behind": (seen(decode=part(DECODE, is_observed=False)), {T.READY: ("False", Reason.DECODE_NOT_READY)}),
    "pod-fails": (
        seen(decode=part(DECODE, 2, ready=1, failures=("no image",))),
        {T.READY: ("False", Reason.DECODE_NOT_READY), T.DEGRADED: ("True", Reason.POD_FAILING)},
    ),
    "stuck": (
        seen(decode=part(DECODE, ready=0, has_completed=False, is_stuck=True)),
        {T.PROGRESSING: ("False", Reason.PROGRESS_DEADLINE_EXCEEDED)}
        | {T.STALLED: ("True", Reason.PROGRESS_DEADLINE_EXCEEDED), T.DEGRADED: ("True", Reason.DECODE_NOT_READY)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_seen_and_what_is_said(case: str) -> None:
    observation, told = CASES[case]
    assert verdicts(observation).items() >= told.items()


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    replaced = verdicts(seen(), replace(EXPECTED, has_own_connector=False))
    assert replaced[T.KV_SHARING] == ("Unknown", Reason.CONNECTOR_REPLACED)
    external = seen(None)
    del external.parts[Component.MASTER]
    told = verdicts(external, replace(EXPECTED, has_managed_master=False))
    assert told[T.KV_SHARING] == ("Unknown", Reason.MASTER_EXTERNAL)


@pytest.mark.parametrize("has_own_master", [True, False])
def test_what_keeps_engines_from_the_store_is_told_beside(has_own_master: bool) -> None:
    """Field cases C43 and C103: the address that was tried, and the likely cause."""
    note = "pod p said at its start: mc.ops.svc:50051: the name does not resolve"
    expected = replace(EXPECTED, has_managed_master=has_own_master)
    for segments in (1, None):
        told = {v.type: v for v in judge(replace(seen(segments), store_note=note), expected)}[T.KV_SHARING]
        assert told.status != "True"
        assert told.message.endswith(note)
    told = {v.type: v for v in judge(replace(seen(2), store_note=note), EXPECTED)}[T.KV_SHARING]
    assert (told.status, note in told.message) == ("True", False), "it has joined meanwhile"


def test_an_update_is_told() -> None:
    told = verdicts(seen(), replace(EXPECTED, is_update_available=True))
    assert told[T.UPDATE_AVAILABLE] == ("True", Reason.OPERATOR_DEFAULTS_CHANGED)


def test_a_halt_tells_what_still_serves() -> None:
    told = {v.type: (v.status, v.reason) for v in judge_halt(seen(), Reason.INVALID_SPEC, "spec.x: y", is_final=True)}
    assert told[T.READY] == told[T.PROGRESSING] == ("False", Reason.INVALID_SPEC)
    assert told[T.STALLED] == ("True", Reason.INVALID_SPEC)
    assert told[T.AVAILABLE] == ("True", Reason.AVAILABLE)
    nothing = {v.type: v.status for v in judge_halt(Observation({}), Reason.API_ERROR, "m", is_final=False)}
    assert (nothing[T.AVAILABLE], nothing[T.RECONCILING]) == ("False", "True")


PARTS = st.builds(
    Part,
    component=st.just(Component.DECODE),
    wished=st.integers(0, 3),
    exists=st.booleans(),
    replicas=st.integers(0, 3),
    ready=st.integers(0, 3),
    updated=st.integers(0, 3),
    is_observed=st.booleans(),
    has_completed=st.booleans(),
    is_stuck=st.booleans(),
    failures=st.sampled_from([(), ("it fails",)]),
)


@given(st.fixed_dictionaries(dict.fromkeys(Component, PARTS)), st.none() | st.integers(0, 9))
def test_kstatus_understands_every_state(parts: dict[Component, Part], segments: int | None) -> None:
    observation = Observation(
        {component: replace(each, component=component) for component, each in parts.items()},
        None if segments is None else ("s",) * segments,
        segments or 0,
    )
    told = {verdict.type: verdict for verdict in judge(observation, EXPECTED)}
    assert told.keys() >= {T.READY, T.AVAILABLE, T.PROGRESSING, T.DEGRADED, T.KV_SHARING, T.UPDATE_AVAILABLE}
    abnormal = told.keys() & {T.RECONCILING, T.STALLED}
    assert (len(abnormal) == 0) == (told[T.READY].status == "True"), "Ready, or one of the two"
    assert len(abnormal) < 2, "they exclude each other"
    assert all(told[kind].status == "True" for kind in abnormal)
    assert all(verdict.message for verdict in told.values())
    if told[T.READY].status == "True":
        assert told[T.DEGRADED].status == "False"


def test_times_move_only_when_a_status_flips() -> None:
    first = merge_conditions([], judge(seen(), EXPECTED), 1, "t1")
    again = merge_conditions(first, judge(seen(decode=part(DECODE, 0)), EXPECTED), 2, "t2")
    times = {condition["type"]: condition["lastTransitionTime"] for condition in again}
    assert (times["Ready"], times["Available"]) == ("t1", "t2")
    assert {condition["observedGeneration"] for condition in again} == {2}


def test_abnormal_conditions_go_when_they_are_over_and_what_was_not_judged_stays() -> None:
    update = judge(seen(), replace(EXPECTED, is_update_available=True))
    halted = merge_conditions(
        merge_conditions([], update, 1, "t1"), judge_halt(seen(), Reason.INVALID_SPEC, "m", is_final=True), 2, "t2"
    )
    types = [condition["type"] for condition in halted]
    assert types[0] == "Ready"
    assert {"Stalled", "UpdateAvailable"} <= set(types)
    assert "Stalled" not in {condition["type"] for condition in merge_conditions(halted, update, 3, "t3")}


def test_messages_have_an_end() -> None:
    verdict = Verdict(T.READY, False, Reason.API_ERROR, "x" * 100_000)
    (condition,) = merge_conditions([], [verdict], 1, "t")
    assert len(condition["message"]) <= 32768


def test_at_first_sight_nothing_looks_finished() -> None:
    assert {verdict.type: verdict.status for verdict in judge_start()} == {T.READY: "False", T.RECONCILING: "True"}


def test_every_word_is_in_the_documentation_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.MULTILINE)
    assert sorted(set(rows)) == sorted({word.value for word in itertools.chain(ConditionType, Reason)})
