"""An object proves itself, or is a miss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.codes import Outcome, judge
from mooncake_store_connector.frames import TRAILER, Fault, find_fault, seal

PAYLOAD = 256


def sealed(key: str = "k", fill: int = 7) -> bytearray:
    slot = bytearray([fill]) * (PAYLOAD + TRAILER)
    seal(memoryview(slot), PAYLOAD, key)
    return slot


def test_a_whole_object_is_proven() -> None:
    assert find_fault(memoryview(sealed()), PAYLOAD, "k") is None


@given(st.integers(0, PAYLOAD + 48 - 1), st.integers(1, 255))
def test_any_changed_byte_is_found(place: int, change: int) -> None:
    slot = sealed()
    slot[place] ^= change
    assert find_fault(memoryview(slot), PAYLOAD, "k") is not None


def test_another_key_length_or_version_is_found() -> None:
    assert find_fault(memoryview(sealed("other")), PAYLOAD, "k") is Fault.KEY
    assert find_fault(memoryview(bytearray(PAYLOAD + TRAILER)), PAYLOAD, "k") is Fault.MAGIC
    longer = bytearray(PAYLOAD * 2 + TRAILER)
    seal(memoryview(longer), PAYLOAD, "k")
    moved = longer[:PAYLOAD] + longer[:PAYLOAD] + longer[PAYLOAD : PAYLOAD + TRAILER]
    assert find_fault(memoryview(moved), PAYLOAD * 2, "k") is Fault.LENGTH


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, Outcome.OK),
        (4096, Outcome.OK),
        (-704, Outcome.MISS),
        (-900, Outcome.UNREACHABLE),
        (-901, Outcome.UNREACHABLE),
        (-800, Outcome.TRANSFER),
        (-200, Outcome.FULL),
        (-600, Outcome.POISON),
        (-12345, Outcome.FAULT),
    ],
)
def test_codes(code: int, outcome: Outcome) -> None:
    assert judge(code) is outcome
