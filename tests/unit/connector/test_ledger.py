"""What the agent knows of an engine's blocks in the store, for those who want to hear of it."""

import os

from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.agent.ledger import Ledger
from mooncake_store_connector.agent.objects import Names, Part, part_of
from mooncake_store_connector.counters import Counters

ONE, TWO, THREE = (bytes([number]) * 32 for number in range(3))
RANKS = ("tp0pp0", "tp1pp0")
NAMES = Names("model:with:colons", RANKS)


def keys(*hashes: bytes, rank: str = RANKS[0], group: int = 0, epoch: int = 0) -> list[str]:
    return [NAMES.key(epoch, rank, group, one) for one in hashes]


def ledger(ranks: int = 1, **bounds: int) -> tuple[Ledger, Counters]:
    counters = Counters()
    made = Ledger(counters, **bounds)
    made.is_wanted, made.ranks = True, ranks
    return made, counters


def told(one: Ledger) -> list[m.News]:
    """All that is to be told now."""
    return list(iter(one.take, None))


@given(st.text(), st.integers(0, 9), st.sampled_from(RANKS), st.integers(0, 3), st.binary(min_size=1, max_size=32))
def test_a_key_says_what_it_names(namespace: str, epoch: int, rank: str, group: int, block_hash: bytes) -> None:
    key = Names(namespace, RANKS).key(epoch, rank, group, block_hash)
    assert part_of(key) == Part(epoch, rank, group, block_hash)


def test_a_block_is_told_when_its_last_rank_has_stored_it() -> None:
    one, _ = ledger(ranks=2)
    one.kept(keys(ONE, TWO), 1.0, 0)
    assert told(one) == []
    one.kept(keys(ONE), 1.0, 0)
    assert told(one) == [], "the same rank again"
    one.kept(keys(ONE, THREE, rank=RANKS[1]), 2.0, 0)
    one.kept(keys(ONE, rank=RANKS[1], group=1), 2.0, 0)
    assert told(one) == [m.Kept([0], [ONE])]
    assert told(one) == []


def test_what_is_gone_is_told_if_it_was_kept_and_only_once() -> None:
    one, _ = ledger()
    one.kept(keys(ONE), 1.0, 0)
    one.gone(keys(ONE, TWO), 2.0)
    one.gone(keys(ONE), 3.0)
    one.kept(keys(TWO), 4.0, 0)
    assert told(one) == [m.Kept([0], [ONE]), m.Gone([0], [ONE]), m.Kept([0], [TWO])]


def test_an_answer_says_nothing_of_what_came_after_the_question() -> None:
    one, _ = ledger()
    one.kept(keys(ONE), 2.0, 0)
    one.gone(keys(ONE), 1.0)
    assert told(one) == [m.Kept([0], [ONE])]
    one.gone(keys(ONE), 2.5)
    assert told(one) == [m.Gone([0], [ONE])]


def test_another_client_or_epoch_takes_all_back_and_late_words_of_the_former_are_not_heard() -> None:
    one, _ = ledger()
    one.begin_life(1)
    assert told(one) == [], "nothing was told"
    one.kept(keys(ONE), 1.0, 1)
    assert told(one) == [m.Kept([0], [ONE])]
    one.kept(keys(TWO), 1.0, 1)
    one.begin_life(2)
    one.kept(keys(TWO), 2.0, 1)
    one.kept(keys(THREE), 2.0, 2)
    assert told(one) == [m.AllGone(), m.Kept([0], [THREE])]
    one.end_epoch(0)
    one.kept(keys(ONE), 3.0, 2)
    one.kept(keys(ONE, epoch=1), 3.0, 2)
    assert told(one) == [m.AllGone(), m.Kept([0], [ONE])]


def test_messages_are_bounded_and_so_is_what_waits() -> None:
    one, counters = ledger(news=2 * m.NEWS + 3)
    hashes = [os.urandom(32) for _ in range(2 * m.NEWS + 10)]
    one.kept(keys(*hashes), 1.0, 0)
    found = told(one)
    assert found == [
        m.Kept([0] * count, hashes[start : start + count])
        for start, count in ((0, m.NEWS), (m.NEWS, m.NEWS), (2 * m.NEWS, 3))
    ]
    assert counters.take() == {"events_dropped": 7}


def test_what_is_known_is_bounded() -> None:
    one, _ = ledger(ranks=2, blocks=2)
    one.kept(keys(ONE, TWO, THREE), 1.0, 0)
    one.kept(keys(THREE, TWO, ONE, rank=RANKS[1]), 1.0, 0)
    assert told(one) == [m.Kept([0, 0], [THREE, TWO])], "the first was forgotten before its second rank came"


def test_nothing_is_noted_where_nobody_wants_it() -> None:
    one, _ = ledger()
    one.kept(keys(ONE), 1.0, 0)
    assert told(one) != []
    one.is_wanted = False
    one.gone(keys(ONE), 2.0)
    assert told(one) == []
