"""Which blocks a prefix needs, and how long a prefix the store has."""

from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.agent.search import Search
from mooncake_store_connector.groups import Group, Shape, chain_ends, ends

UNIT = 4
FULL = Shape((Group(UNIT),), UNIT, UNIT)
HYBRID = Shape((Group(UNIT), Group(UNIT, window=10)), UNIT, UNIT)
SIZES = Shape((Group(8), Group(4, window=6)), 8, 4)


def run(search: Search, there: set[tuple[int, int]], most: int = 200) -> int:
    """Answer a search from a set of blocks; how many questions it asked."""
    rounds = 0
    while wanted := search.wanted():
        rounds += 1
        assert rounds < most
        search.learn({place: place in there for place in wanted})
    return rounds


def test_a_window_needs_the_blocks_that_the_next_token_sees() -> None:
    # Token 40 sees tokens 31 to 40: blocks 7, 8 and 9 of those before it.
    assert list(Group(4, window=10).needed(40)) == [7, 8, 9]
    assert list(Group(4).needed(40, computed=24)) == [6, 7, 8, 9]
    assert list(Group(4, window=10).needed(40, computed=36)) == [9]
    assert list(Group(4, window=1).needed(40)) == []


def test_one_token_is_always_computed() -> None:
    assert [FULL.usable(tokens) for tokens in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]


def test_groups_with_larger_blocks_take_the_hash_of_their_last_part() -> None:
    assert SIZES.hash_index(0, 0) == 1
    assert SIZES.hash_index(1, 0) == 0
    assert ends(SIZES, 16) == [(0, 1), (1, 3)]
    assert chain_ends(SIZES, 16) == [(0, 1)]


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_prefix_that_is_there_without_a_gap_is_found_whole(stored: int, limit: int) -> None:
    there = {(0, block) for block in range(stored)}
    search = Search(FULL, limit * UNIT)
    run(search, there)
    assert search.found == min(stored, limit) * UNIT


@given(st.sets(st.integers(0, 40)), st.integers(1, 40))
def test_what_is_found_ends_with_a_block_that_is_there(blocks: set[int], limit: int) -> None:
    """A gap may hide behind it; loading finds that. Nothing is promised beyond the limit."""
    search = Search(FULL, limit * UNIT)
    run(search, {(0, block) for block in blocks})
    assert search.found <= limit * UNIT
    assert search.found == 0 or (search.found // UNIT - 1) in blocks


def test_a_long_prompt_takes_few_questions() -> None:
    search = Search(FULL, 65536 * UNIT)
    assert run(search, {(0, block) for block in range(40_000)}) <= 7


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_window_that_is_gone_shortens_the_prefix(stored: int, gone: int) -> None:
    there = {(group, block) for group in (0, 1) for block in range(stored)} - {(1, gone)}
    search = Search(HYBRID, 30 * UNIT)
    run(search, there)
    needed = {place for place in HYBRID.needed(search.found) if place[0] == 1}
    assert needed <= there


def test_a_promise_is_waited_for_and_then_given_up() -> None:
    search = Search(FULL, 10 * UNIT, promised=8 * UNIT)
    for _ in range(3):
        assert search.wanted() == [(0, 7)]
        search.learn({(0, 7): False})
        assert search.is_waiting
    search.give_up()
    run(search, {(0, block) for block in range(3)})
    assert search.found == 3 * UNIT
    kept = Search(FULL, 10 * UNIT, promised=8 * UNIT)
    run(kept, {(0, 7)})
    assert kept.found == 8 * UNIT


@given(st.sets(st.tuples(st.integers(0, 1), st.integers(0, 12))), st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_only_what_all_groups_have_proven_is_offered(
    proven: set[tuple[int, int]], tokens: int, computed: int, hybrid: bool
) -> None:
    shape = HYBRID if hybrid else FULL
    have, limit = computed * UNIT, max(tokens, computed) * UNIT
    length = shape.longest(limit, have, lambda group, block: (group, block) in proven)
    assert have <= length <= limit
    assert set(shape.needed(length, have)) <= proven
    # Nothing longer was possible.
    for longer in range(length + UNIT, limit + 1, UNIT):
        assert not set(shape.needed(longer, have)) <= proven
