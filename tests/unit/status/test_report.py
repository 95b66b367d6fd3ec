"""The status as a whole, and the events of its transitions."""

from typing import Any

import pytest
from disagg_operator.api.names import Component
from disagg_operator.status.conditions import Expectation, judge
from disagg_operator.status.observation import Observation, Part
from disagg_operator.status.report import (
    build_status,
    format_size,
    halted_status,
    is_same_status,
    plan_events,
    with_conditions,
)
from unit.build.samples import build, make

Json = dict[str, Any]


def seen(ready: int = 2) -> Observation:
    parts = {c: Part(c, 1, True, 1, 1, 1, is_observed=True, has_completed=True) for c in Component}
    parts[Component.DECODE] = Part(Component.DECODE, 2, True, 2, ready, 2, is_observed=True, has_completed=True)
    return Observation(parts, ("10.0.0.1:1",), 1)


def status(ready: int = 2) -> Json:
    resource = make({"decode": {"replicas": 2}}, generation=4)
    expected = Expectation({"prefill": 1, "decode": 1})
    body = build_status(resource, build(resource), seen(ready), expected)
    return with_conditions(body, {}, judge(seen(ready), expected), "t")


def test_a_status_tells_counts_and_addresses() -> None:
    told = status(ready=1)
    assert told["observedGeneration"] == 4
    assert told["decode"]["ready"] == "1/2"
    assert told["decode"]["selector"] == "inference.disagg.io/name=llama,inference.disagg.io/role=decode"
    assert told["endpoint"] == "http://llama-router.team-a.svc.cluster.local:8000"
    assert told["kvStore"] == {"segments": 1, "expectedSegments": 2, "poolSize": told["kvStore"]["poolSize"]}
    assert told["conditions"][0]["type"] == "Ready"


def test_the_pool_is_told_whole() -> None:
    """Field case C104: one segment for each rank of each replica."""
    role = {"parallelism": {"tensor": 4}, "resources": {"limits": {"memory": "64Gi"}}}
    store = {"segmentSize": "10Gi", "localBufferSize": "1Gi"}
    for replicas, pool in ((0, "120Gi"), (1, "160Gi")):
        resource = make(
            {"kvStore": store, "prefill": {"replicas": 3, **role}, "decode": {"replicas": replicas, **role}}
        )
        told = build_status(resource, build(resource), seen(), Expectation({"prefill": 4, "decode": 4}))
        assert told["kvStore"]["poolSize"] == pool


def test_the_order_of_conditions_says_nothing() -> None:
    one, other = status(), status()
    other["conditions"].reverse()
    assert is_same_status(one, other)
    other["conditions"][0] = {**other["conditions"][0], "message": "else"}
    assert not is_same_status(one, other)


def test_a_halted_status_keeps_what_is_known_and_counts_anew() -> None:
    told = halted_status(9, status(), seen(ready=0))
    assert told["observedGeneration"] == 9
    assert told["decode"]["ready"] == "0/2"
    assert told["decode"]["revision"] == status()["decode"]["revision"]
    assert "conditions" not in told


@pytest.mark.parametrize(
    ("size", "told"), [(0, "0"), (1, "1"), (1024, "1Ki"), (3 << 30, "3Gi"), ((1 << 30) + 1, str((1 << 30) + 1))]
)
def test_sizes(size: int, told: str) -> None:
    assert format_size(size) == told


def condition(kind: str, value: str, reason: str = "R", message: str = "m") -> Json:
    return {"type": kind, "status": value, "reason": reason, "message": message}


def events(old: list[Json], new: list[Json]) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in plan_events({"conditions": old}, {"conditions": new})]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ([], [condition("Ready", "False", "Starting")], []),
        ([], [condition("Ready", "True")], [("Normal", "Ready")]),
        ([condition("Ready", "True")], [condition("Ready", "True", message="n")], []),
        ([condition("Ready", "True")], [condition("Ready", "False")], [("Normal", "NotReady")]),
        ([condition("Ready", "False")], [condition("Ready", "False", "Other")], []),
        ([condition("Available", "True")], [condition("Available", "False")], [("Warning", "NotAvailable")]),
        ([condition("KVSharing", "True")], [condition("KVSharing", "Unknown")], [("Warning", "KVSharingLost")]),
        ([condition("Degraded", "False")], [condition("Degraded", "True")], [("Warning", "Degraded")]),
        ([condition("Degraded", "True", "A")], [condition("Degraded", "True", "B")], [("Warning", "Degraded")]),
        ([condition("Degraded", "True")], [condition("Degraded", "False")], [("Normal", "Recovered")]),
        ([], [condition("Stalled", "True", "InvalidSpec")], [("Warning", "Stalled")]),
        ([], [condition("Reconciling", "True", "DecodeNotReady")], []),
        ([], [condition("Reconciling", "True", "ResourceConflict")], [("Warning", "ResourceConflict")]),
        (
            [condition("Reconciling", "True", "ResourceConflict")],
            [condition("Reconciling", "True", "ResourceConflict")],
            [],
        ),
        (
            [condition("UpdateAvailable", "False")],
            [condition("UpdateAvailable", "True")],
            [("Normal", "UpdateAvailable")],
        ),
        ([condition("UpdateAvailable", "True")], [condition("UpdateAvailable", "False")], []),
    ],
)
def test_a_transition_is_told_once(old: list[Json], new: list[Json], told: list[tuple[str, str]]) -> None:
    assert events(old, new) == told


def test_a_new_revision_is_told() -> None:
    old = {"prefill": {"revision": "a"}, "decode": {"revision": "b"}}
    new = {"prefill": {"revision": "a"}, "decode": {"revision": "c"}, "conditions": []}
    (event,) = plan_events(old, new)
    assert (event.reason, event.message) == ("RolloutStarted", "decode pods move from revision b to c")
    assert plan_events({}, new) == []
