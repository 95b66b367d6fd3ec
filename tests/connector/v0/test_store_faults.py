"""A store that is late, dies, hangs, is full or is closed: no call raises, none waits for long, all is counted.

Each call has a time limit, which is that nothing hangs.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.processes import free_port, master
from connector.v0.programs import IMPATIENT, NAME, SEGMENT, Site, Worker, site
from connector.v0.test_outcomes import MISS, hit, new_batch, received

# A call may meet a few time limits of two seconds before it knows, on a machine that is busy.
LIMIT = 60


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Site]:
    """A site of one test, as it does not outlive it."""
    with site(tmp_path) as made:
        yield made


def _pair(alone: Site) -> tuple[Worker, Worker]:
    workers = [alone.worker(MC_RPC_TIMEOUT_MS=IMPATIENT, MC_RPC_CONNECT_TIMEOUT_MS=IMPATIENT) for _ in range(2)]
    for one in workers:
        one.open()
    return workers[0], workers[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_master_that_goes_mid_way(alone: Site, number: signal.Signals) -> None:
    alone.raw(SEGMENT)
    producer, consumer = _pair(alone)
    batch, later = new_batch(20, 30), new_batch(9, 9, 9, 9)
    producer("send", batch)
    assert hit(consumer, batch)
    alone.master.send(number)
    try:
        found = consumer("recv", batch, [], seconds=LIMIT)
        assert (found["bypass"], found["caches_equal"]) == (False, True)
        producer("send", later, seconds=LIMIT)
        assert producer.count("sent_sequences") == 2
        assert producer.count("unsent_sequences") == 4
        assert consumer.count("get_failures") > 0
        assert any("does not answer" in line for line in consumer("warnings"))
        consumer("close", seconds=LIMIT)
    finally:
        alone.master.send(signal.SIGCONT)


def test_a_master_that_hangs_for_a_while_is_used_again(alone: Site) -> None:
    alone.raw(SEGMENT)
    producer, consumer = _pair(alone)
    batch = new_batch(20, 30)
    producer("send", batch)
    alone.master.send(signal.SIGSTOP)
    found = consumer("recv", batch, [], seconds=LIMIT)
    assert (found["bypass"], found["caches_equal"]) == (False, True)
    alone.master.send(signal.SIGCONT)
    consumer.wait_usable()
    assert hit(consumer, batch)


def test_an_engine_starts_without_a_master_and_joins_it_later(tmp_path: Path) -> None:
    port = free_port()
    with master(tmp_path / "first.log", port=port) as (_, process):
        made = Site(tmp_path, port, process, segment=64 << 20)
    one = made.worker()
    try:
        assert one("open", {}, 0, 0, {}, NAME) == ""
        batch = new_batch(20)
        assert received(one, batch, []) == MISS
        one("send", batch)
        assert one.count("unsent_sequences") == 1
        assert any("without a Mooncake store" in line for line in one("warnings"))
        with master(tmp_path / "second.log", port=port):
            one.wait_usable()
            one("send", batch)
            assert hit(one, batch)
            one("close")
    finally:
        made.stop()


def test_the_owner_of_the_memory_dies(alone: Site) -> None:
    owner = alone.raw(SEGMENT)
    producer, consumer = _pair(alone)
    batch = new_batch(20, 30)
    producer("send", batch)
    owner.stop()
    assert received(consumer, batch, []) == MISS
    assert consumer.count("get_failures") == 2
    assert consumer.count("removed_values") == 0
    producer("send", new_batch(7))
    assert producer.count("unsent_sequences") == 1


def test_a_store_without_room(alone: Site) -> None:
    alone.raw(16 << 20)
    producer, consumer = _pair(alone)
    large, small = new_batch(2000), new_batch(5)
    for one in (producer, consumer):
        one.open({"layers": 40, "kv_heads": 8})
    producer("send", large, seconds=LIMIT)
    assert (producer.count("unsent_sequences"), producer.count("put_failures")) == (1, 1)
    assert any("code -" in line for line in producer("warnings"))
    assert received(consumer, large, []) == MISS
    producer("send", small)
    assert hit(consumer, small)


def test_closing_gives_back_the_segment_and_happens_once(tmp_path: Path) -> None:
    with site(tmp_path, segment=64 << 20) as made:
        one, other = made.worker(), made.raw()
        one.open()
        batch = new_batch(20)
        one("send", batch)
        assert hit(one, batch)
        # All the memory that the store has is this connector's.
        assert other.put_bytes("a", b"x") == 0
        one("close")
        one("close")
        assert other.put_bytes("b", b"x") < 0
        assert received(one, batch, []) == MISS
        one("send", new_batch(3))
        assert one.count("unsent_sequences") == 1


def test_each_worker_lends_memory_as_in_the_original(tmp_path: Path) -> None:
    """The default of the config: what one sends may lie with any of them."""
    with site(tmp_path, segment=64 << 20) as made:
        producer, consumer = made.worker(), made.worker()
        for one in (producer, consumer):
            one.open()
        for _ in range(4):
            batch = new_batch(50, 200)
            producer("send", batch)
            assert hit(consumer, batch)


def test_a_master_that_hangs_while_an_engine_starts(alone: Site) -> None:
    """Its port accepts connections, so that only joining finds out."""
    alone.raw(SEGMENT)
    one = alone.worker(MC_RPC_TIMEOUT_MS=IMPATIENT, MC_RPC_CONNECT_TIMEOUT_MS=IMPATIENT)
    one("environ", "UNUSED", None)
    alone.master.send(signal.SIGSTOP)
    try:
        assert one("open", {}, 0, 0, {}, NAME, seconds=LIMIT) == ""
        batch = new_batch(20)
        assert received(one, batch, []) == MISS
    finally:
        alone.master.send(signal.SIGCONT)
    one.wait_usable()
    one("send", batch)
    assert hit(one, batch)
