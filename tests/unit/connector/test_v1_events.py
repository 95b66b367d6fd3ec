"""What is told of blocks in the store: each that came once, each that went if it had come, and nothing unbounded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.groups import Group, Shape
from mooncake_store_connector.v1.events import Bounds, Events, Fact, Run

SHAPE = Shape((Group(4), Group(8, window=16)), 8, 4)


@dataclass(frozen=True)
class Request:
    """As much of one as events look at."""

    tokens: list[int]
    block_hashes: list[bytes]
    adapter: str = ""


class Words:
    """Events as plain tuples."""

    def fact(self, request: Any, start: int, end: int, parent: bytes | None) -> Fact:
        return Fact(parent, request.tokens[start:end], (start,), {"adapter": request.adapter})

    def stored(self, run: Run) -> Any:
        return ("stored", run)

    def removed(self, group: int, hashes: Sequence[bytes]) -> Any:
        return ("removed", group, list(hashes))


def request(tokens: int, adapter: str = "", first: int = 0) -> Request:
    """Hashes are of one byte: the number of the hash block."""
    return Request(list(range(tokens)), [bytes([first + number]) for number in range(tokens // 4)], adapter)


def events(**bounds: int) -> tuple[Events, Counters]:
    counters = Counters()
    return Events(Words(), SHAPE, counters, Bounds(**bounds)), counters


def kept(*hashes: int, group: int = 0) -> m.Kept:
    return m.Kept([group] * len(hashes), [bytes([one]) for one in hashes])


def gone(*hashes: int, group: int = 0) -> m.Gone:
    return m.Gone([group] * len(hashes), [bytes([one]) for one in hashes])


def test_blocks_that_follow_upon_each_other_are_told_together() -> None:
    one, _ = events()
    one.note(request(24), [(0, 0), (0, 1), (0, 2), (0, 4), (1, 1)], 1.0)
    one.hear(kept(0, 1, 2, 4))
    one.hear(kept(3, group=1))
    assert one.take() == [
        ("stored", Run(0, None, {"adapter": ""}, 4, [b"\0", b"\1", b"\2"], list(range(12)), [(0,), (4,), (8,)])),
        ("stored", Run(0, b"\3", {"adapter": ""}, 4, [b"\4"], [16, 17, 18, 19], [(16,)])),
        # A larger block has the hash of its last hash block, and so has its parent.
        ("stored", Run(1, b"\1", {"adapter": ""}, 8, [b"\3"], list(range(8, 16)), [(8,)])),
    ]
    assert one.take() == []


def test_blocks_of_several_requests_stay_apart() -> None:
    one, _ = events()
    one.note(request(8), [(0, 0)], 1.0)
    one.note(request(8, "lora", first=10), [(0, 0), (0, 1)], 1.0)
    one.hear(kept(0, 10, 11))
    assert [(run.labels["adapter"], run.hashes) for _, run in one.take()] == [
        ("", [b"\0"]),
        ("lora", [b"\x0a", b"\x0b"]),
    ]


def test_a_block_is_told_once_until_it_is_gone() -> None:
    one, counters = events()
    for _ in range(2):
        one.note(request(4), [(0, 0)], 1.0)
        one.hear(kept(0))
    assert len(one.take()) == 1
    one.hear(gone(0, 1))
    one.hear(gone(0))
    assert one.take() == [("removed", 0, [b"\0"])]
    one.note(request(4), [(0, 0)], 2.0)
    one.hear(kept(0))
    assert [kind for kind, _ in one.take()] == ["stored"]
    assert counters.take() == {}


@pytest.mark.parametrize("is_agent", [True, False])
def test_what_was_told_is_taken_back_and_what_was_not_is_not_told(is_agent: bool) -> None:
    one, counters = events()
    one.note(request(40), [(0, 0), (0, 1), (0, 2), (1, 0)], 1.0)
    one.hear(kept(0, 1))
    one.hear(kept(1, group=1))
    assert len(one.take()) == 2
    one.hear(kept(2))
    if is_agent:
        one.hear(m.AllGone())
    else:
        one.forget()
        one.forget()
    # Of the time after it.
    one.note(request(4), [(0, 0)], 2.0)
    one.hear(kept(0))
    found = one.take()
    assert found[:2] == [("removed", 0, [b"\0", b"\1"]), ("removed", 1, [b"\1"])]
    assert [run.hashes for _, run in found[2:]] == [[b"\0"]]
    assert counters.take() == {}


def test_what_nobody_knows_any_more_is_counted() -> None:
    one, counters = events(noted=2)
    one.note(request(12), [(0, 0), (0, 1), (0, 2)], 1.0)
    one.hear(kept(0, 1, 2))
    assert [run.hashes for _, run in one.take()] == [[b"\1", b"\2"]]
    assert counters.take() == {"events_dropped": 1}
    one.note(request(4, first=20), [(0, 0)], 1.0)
    one.note(request(4, first=21), [(0, 0)], 31.5)
    one.hear(kept(20, 21))
    assert [run.hashes for _, run in one.take()] == [[bytes([21])]]
    assert counters.take() == {"events_dropped": 1}


def test_what_does_not_fit_is_counted() -> None:
    one, counters = events(waiting=3)
    one.note(request(24), [(0, block) for block in range(6)], 1.0)
    one.hear(kept(0, 1))
    one.hear(kept(2, 3))
    one.hear(kept(4))
    assert [run.hashes for _, run in one.take()] == [[b"\0", b"\1"], [b"\4"]]
    assert counters.take() == {"events_dropped": 2}
    one.hear(gone(0, 1, 4))
    assert one.take() != [], "there is room again"


def test_what_was_told_and_is_forgotten_is_taken_back() -> None:
    one, _ = events(told=2)
    one.note(request(12), [(0, 0), (0, 1), (0, 2)], 1.0)
    one.hear(kept(0, 1))
    one.take()
    one.note(request(4), [(0, 0)], 1.0)
    one.hear(kept(0))
    assert one.take() == [], "it is the younger now"
    one.hear(kept(2))
    assert [event[0] for event in one.take()] == ["stored", "removed"]
    one.hear(gone(1, 0))
    assert one.take() == [("removed", 0, [b"\0"])]


def test_a_step_is_told_no_more_than_it_bears() -> None:
    one, _ = events()
    hashes = [number.to_bytes(2, "big") for number in range(3000)]
    whole = Request(list(range(12_000)), hashes)
    one.note(whole, [(0, block) for block in range(3000)], 1.0)
    for start in range(0, 3000, m.NEWS):
        part = hashes[start : start + m.NEWS]
        one.hear(m.Kept([0] * len(part), part))
    steps = list(iter(one.take, []))
    assert [hash for step in steps for _, run in step for hash in run.hashes] == hashes
    one.forget()
    back = list(iter(one.take, []))
    assert [hash for step in back for _, _, part in step for hash in part] == hashes
    assert len(steps) > 1
    assert len(back) > 1


def test_empty_steps_are_wanted_for_a_moment_only() -> None:
    one, _ = events()
    assert not one.is_expecting(1.0)
    one.note(request(4), [(0, 0)], 1.0)
    assert one.is_expecting(9.0), "the step was long"
    assert one.is_expecting(10.9)
    assert not one.is_expecting(11.1), "the store has not taken it"
    one.note(request(4), [(0, 0)], 12.0)
    assert one.is_expecting(13.0)
    one.hear(kept(0))
    assert one.is_expecting(20.0)
    one.take()
    assert not one.is_expecting(20.0)


_STEPS = st.one_of(
    st.tuples(st.just("note"), st.integers(0, 7)),
    st.tuples(st.just("kept"), st.lists(st.integers(0, 7), max_size=8)),
    st.tuples(st.just("gone"), st.lists(st.integers(0, 7), max_size=5)),
    st.tuples(st.sampled_from(["all gone", "forget", "take"]), st.none()),
)


@example([("note", 0), ("kept", [0]), ("gone", [0, 0])], 1, 3)
@given(st.lists(_STEPS, max_size=60), st.integers(1, 8), st.integers(3, 20))
def test_whoever_follows_never_hears_a_thing_twice(
    steps: list[tuple[str, Any]], most_told: int, most_waiting: int
) -> None:
    one, _ = events(told=most_told, waiting=most_waiting)
    known: set[bytes] = set()

    def follow() -> None:
        for event in one.take():
            hashes = event[1].hashes if event[0] == "stored" else event[2]
            assert len(set(hashes)) == len(hashes)
            assert known.isdisjoint(hashes) if event[0] == "stored" else known.issuperset(hashes)
            known.symmetric_difference_update(hashes)

    for step, what in steps:
        match step:
            case "note":
                one.note(request(32), [(0, what)], 1.0)
            case "kept":
                one.hear(kept(*what))
            case "gone":
                one.hear(gone(*what))
            case "all gone":
                one.hear(m.AllGone())
            case "forget":
                one.forget()
            case "take":
                follow()
        assert len(known) <= most_told
    follow()
    one.forget()
    follow()
    assert known == set()
