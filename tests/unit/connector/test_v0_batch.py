"""Which sequences of a batch the V0 connector may touch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.v0.batch import Batch, Span, split_batch


def _split(lens: list[int], prefill: int, tokens: int | None = None, prefills: int | None = None) -> Batch:
    count = sum(lens) if tokens is None else tokens
    return split_batch(lens, prefill, tokens=count, slots=count, prefills=prefills)


def test_sequences_lie_one_after_another() -> None:
    assert _split([3, 1, 2], 6) == Batch((Span(0, 3), Span(3, 4), Span(4, 6)))


def test_an_empty_batch_is_no_problem() -> None:
    assert _split([], 0) == Batch()


def test_a_sequence_of_no_tokens_is_there() -> None:
    assert _split([2, 0, 1], 3).prefills == (Span(0, 2), Span(2, 2), Span(2, 3))


@pytest.mark.parametrize("prefills", [None, 2])
def test_what_starts_at_the_end_of_prefill_is_decode_work(prefills: int | None) -> None:
    assert _split([4, 2, 9, 7], 6, tokens=8, prefills=prefills) == Batch((Span(0, 4), Span(4, 6)), has_decode=True)


def test_a_batch_of_decode_work_alone() -> None:
    assert _split([9], 0, tokens=1) == Batch((), has_decode=True)


@pytest.mark.parametrize(
    ("lens", "prefill", "tokens", "prefills"),
    [
        ([10], 6, 6, None),  # four tokens are in the cache already
        ([10, 5], 11, 11, None),
        ([10, 5], 10, 10, None),  # the sums agree by chance, but no token is left for the second
        ([10, 5], 10, 10, 2),
        ([10, 5, 30], 10, 11, 2),  # as above, with decode work behind
        ([3], 5, 5, None),
        ([5], 5, 4, None),
        ([6, -1], 5, 5, None),
    ],
)
def test_lengths_that_do_not_fit_the_tokens_are_a_problem(
    lens: list[int], prefill: int, tokens: int, prefills: int | None
) -> None:
    found = _split(lens, prefill, tokens, prefills)
    assert found.problem
    assert found.prefills == ()


def test_too_few_slots_are_a_problem() -> None:
    assert split_batch([5], 5, tokens=5, slots=4).problem


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1), st.integers(0, 3))
def test_cached_parts_are_always_found_when_the_engine_tells_how_many_prefill(
    sequences: list[tuple[int, int]], decodes: int
) -> None:
    """Each sequence has a cached part and new tokens: a batch is accepted only if no part is cached."""
    lens = [cached + new for cached, new in sequences] + [50] * decodes
    new_tokens = sum(new for _, new in sequences)
    found = _split(lens, new_tokens, new_tokens + decodes, len(sequences))
    assert bool(found.problem) == any(cached for cached, _ in sequences)


@given(st.lists(st.integers(1, 40)), st.integers(0, 3))
def test_spans_cover_the_prefill_tokens(lens: list[int], decodes: int) -> None:
    found = _split(lens + [7] * decodes, sum(lens), sum(lens) + decodes)
    assert [position for span in found.prefills for position in range(span.start, span.end)] == list(range(sum(lens)))
    assert found.has_decode == (decodes > 0)
