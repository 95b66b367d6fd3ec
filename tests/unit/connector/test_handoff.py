"""The hand-off: what is promised, what is believed, and how long it is waited for."""

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
