"""The hand-off: what is promised, what is believed, and how long it is waited for."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.handoff import (
    Hint,
    build_hint,
    build_params,
    build_request,
    is_asked_for,
    read_hint,
    tokens_to_wait_for,
)
from mooncake_store_connector.waits import LIMIT_OF_MISSES, PAUSE_SECONDS, Waits

BLOCK = 4


def _hashes(tokens: int, seed: int = 0) -> list[bytes]:
    return [bytes([seed, index]) * 4 for index in range(tokens // BLOCK)]


@given(st.integers(1, 200))
def test_decode_waits_for_what_prefill_promised(tokens: int) -> None:
    hint = build_hint("ns", tokens, BLOCK, BLOCK, _hashes(tokens))
    sent = read_hint(build_params(hint)) if hint else None
    assert sent == hint
    wanted = tokens_to_wait_for(sent, "ns", tokens, BLOCK, BLOCK, _hashes(tokens))
    assert wanted == (tokens - 1) // BLOCK * BLOCK
    assert wanted < tokens, "one token is always computed"


@pytest.mark.parametrize(
    ("hint", "namespace", "hashes"),
    [
        (None, "ns", _hashes(20)),
        (Hint("other", 20, _hashes(20)[-1].hex()), "ns", _hashes(20)),
        (Hint("ns", 20, _hashes(20)[-1].hex()), "ns", _hashes(20, seed=1)),
        (Hint("ns", 40, _hashes(40)[-1].hex()), "ns", _hashes(20)),
        (Hint("ns", 20, ""), "ns", _hashes(20)),
    ],
)
def test_what_is_not_provably_the_same_prompt_is_not_waited_for(
    hint: Hint | None, namespace: str, hashes: list[bytes]
) -> None:
    """Field case C56: with different hash seeds, nothing would ever arrive."""
    assert tokens_to_wait_for(hint, namespace, 21, BLOCK, BLOCK, hashes) == 0


def test_asking_is_not_promising() -> None:
    assert is_asked_for(build_request())
    assert read_hint(build_request()) is None
    assert not is_asked_for(None)
    assert not is_asked_for({"do_remote_decode": True})


_WORDS = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers(), max_size=2)


@given(st.dictionaries(st.sampled_from(["v", "ns", "tokens", "last_key"]), _WORDS | st.just(1)))
def test_no_message_breaks_the_reader(content: dict[str, object]) -> None:
    hint = read_hint({"mooncake_store": content})
    assert tokens_to_wait_for(hint, "ns", 21, BLOCK, BLOCK, _hashes(20)) in range(21)


def _expire(waits: Waits, name: str, now: float) -> float:
    """Let one wait end without its blocks; the time afterwards."""
    waits.begin(name, 100, now)
    assert waits.go_on(name, 0, now)
    now += waits.timeout
    assert not waits.go_on(name, 50, now)
    waits.settle(name)
    waits.forget(name)
    return now


def test_a_wait_ends_by_arrival_or_by_its_deadline() -> None:
    waits = Waits(timeout=1.0)
    waits.begin("a", 100, now=0.0)
    assert waits.go_on("a", 99, now=0.5)
    assert not waits.may_look("a", now=0.501), "looks are rationed"
    assert waits.may_look("a", now=0.51)
    assert not waits.go_on("a", 100, now=0.52)
    waits.begin("b", 100, now=0.0)
    assert not waits.go_on("b", 0, now=1.0)


def test_a_request_is_offered_blocks_once() -> None:
    waits = Waits(timeout=1.0)
    waits.settle("a")
    assert waits.is_done("a"), "its load failed, or it was preempted"
    waits.forget("a")
    assert not waits.is_done("a")


def test_broken_promises_end_the_waiting_for_a_while() -> None:
    waits, now = Waits(timeout=1.0), 0.0
    for index in range(LIMIT_OF_MISSES):
        now = _expire(waits, str(index), now)
    waits.begin("next", 100, now)
    assert not waits.go_on("next", 0, now), "no patience during the pause"
    waits.begin("later", 100, now + PAUSE_SECONDS)
    assert waits.go_on("later", 0, now + PAUSE_SECONDS)
    assert not waits.go_on("later", 100, now + PAUSE_SECONDS + 0.1)
    assert waits.misses == 0


@given(st.lists(st.sampled_from(["begin", "look", "settle", "forget"]), max_size=30), st.data())
def test_nothing_is_kept_of_requests_that_are_gone(steps: list[str], data: st.DataObject) -> None:
    waits, now = Waits(timeout=0.1), 0.0
    acts: dict[str, Callable[[], object]] = {
        "begin": lambda: waits.begin("a", 10, now),
        "look": lambda: waits.go_on("a", data.draw(st.integers(0, 20)), now),
        "settle": lambda: waits.settle("a"),
        "forget": lambda: waits.forget("a"),
    }
    for step in steps:
        acts[step]()
        now += 0.02
    waits.forget("a")
    assert not waits._waiting
    assert not waits._offered
