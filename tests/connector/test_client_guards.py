"""How Mooncake's client behaves where its answers mislead, and that the connector is not misled.

Each test shows the behaviour with a client alone, where that takes no time, and then the guard with a real agent. All
that is known of the client is listed in docs/connector-guards.md.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mooncake_store_connector.frames import TRAILER

from connector.environment import connector_path, program
from connector.processes import free_port, master
from connector.stand_in import BLOCK, PAYLOAD, SAVE_SLOTS, StandIn, stand_in
from connector.store_programs import P2P, Client, client
from connector.test_agent import blocks, config_file, key, saves

SIZE = PAYLOAD + TRAILER
MISSING, NOT_READY, WRONG_SIZE, LEASED, TRANSFER_FAILED, FULL = -704, -703, -600, -706, -800, -200


@dataclass
class Site:
    """An engine's agent and another client on one store."""

    one: StandIn
    other: Client
    port: int


@contextmanager
def site(folder: Path, *flags: str, **changes: object) -> Iterator[Site]:
    """Both have joined. `flags` are the master's, `changes` those of the agent's config."""
    with (
        master(folder / "master.log", flags=flags) as (port, _),
        # Its answers are looked at: a busy machine may take its time.
        client(folder / "other.log", {"MC_RPC_TIMEOUT_MS": "20000"}) as other,
        stand_in(config_file(folder, port, **changes), folder / "agent.log") as one,
    ):
        assert other.join(P2P, port) == 0
        one.wait_usable(seconds=180)
        yield Site(one, other, port)


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_a_put_over_another_object_says_that_it_is_stored(tmp_path: Path) -> None:
    """The first bytes stay for good. Found on load, removed, and the next save takes its place."""
    hashes, payloads = blocks(3)
    with site(tmp_path) as on:
        assert on.other("put_hex", key(hashes[1]), "aa" * 100) == 0
        assert on.other("put_hex", key(hashes[1]), "bb" * SIZE) == 0
        assert on.other("get_hex", key(hashes[1])) == "aa" * 100
        on.one.save(hashes, payloads)
        assert on.one.load(hashes) == {(0, 0): [payloads[0]]}
        assert on.other("get_size", key(hashes[1])) == MISSING
        on.one.save(hashes, payloads)
        assert on.one.load(hashes) == {(0, index): [payloads[index]] for index in range(3)}


def test_less_than_was_asked_for_is_no_error(tmp_path: Path) -> None:
    """The number of bytes tells it, from memory of one's own process and from another's. More than that is -600.

    Objects of either kind are misses and make room.
    """
    hashes, payloads = blocks(4)
    with site(tmp_path) as on:
        assert on.other("put_hex", "object", "aa" * 100) == 0
        assert on.other("get_sized", ["object"], 200)[0] == [100]
        assert on.other("get_sized", ["object"], 50)[0] == [WRONG_SIZE]
        assert on.other("get_sized", ["nothing"], 50)[0] == [MISSING]
        for index, size in enumerate((100, SIZE - 1, SIZE + 1)):
            assert on.other("put_hex", key(hashes[index]), "aa" * size) == 0
            assert on.one.load(hashes[index : index + 1]) == {}
            assert on.other("get_size", key(hashes[index])) == MISSING
        on.one.save(hashes, payloads)
        assert len(on.one.load(hashes)) == 4


def test_a_put_beside_an_open_session_says_that_it_is_stored(tmp_path: Path) -> None:
    """Nothing is readable until the session ends, and never if its writer dies. Nobody waits longer than promised."""
    hashes, payloads = blocks(1)
    with site(tmp_path, "-put_start_discard_timeout_sec=1") as on:
        assert on.other("batch_put_session_start", [key(hashes[0])], [SIZE]) == [0]
        assert on.other("put_hex", key(hashes[0]), "aa" * SIZE) == 0
        assert on.other("batch_is_exist", [key(hashes[0])]) == [0]
        assert on.other("get_sized", [key(hashes[0])], SIZE)[0] == [NOT_READY]
        on.one.save(hashes, payloads)
        on.one.wait("the store to say that it has the block", lambda: on.one.totals.get("saved_blocks") == 1)
        assert on.one.answer(on.one.ask(hashes, promised=BLOCK, seconds=0.5)).ready == 0
        on.other.stop()
        on.one.wait("a save in its place", lambda: saves(on.one, (hashes, payloads)), seconds=90)
        assert on.one.load(hashes) == {(0, 0): [payloads[0]]}


def test_a_session_ends_well_with_half_of_the_object_written(tmp_path: Path) -> None:
    hashes, payloads = blocks(2)
    with site(tmp_path) as on:
        on.one.save(hashes[:1], payloads[:1])
        good = on.other("get_hex", key(hashes[0]))
        half = key(hashes[1])
        assert on.other("batch_put_session_start", [half], [SIZE]) == [0]
        assert on.other("put_range", half, good[:SIZE]) == SIZE // 2
        assert on.other("batch_put_session_end", [half]) == [0]
        assert on.other("batch_is_exist", [half]) == [1]
        assert on.other("get_hex", half)[:SIZE] == good[:SIZE]
        assert on.one.load(hashes) == {(0, 0): [payloads[0]]}
        assert on.other("get_size", half) == MISSING


def test_a_lease_keeps_what_was_asked_for_from_being_removed(tmp_path: Path) -> None:
    """A look gives a lease. So the agent's removal of what it just saw has to be forced."""
    hashes, payloads = blocks(1)
    with site(tmp_path) as on:
        assert on.other("put_hex", key(hashes[0]), "aa" * SIZE) == 0
        assert on.other("batch_is_exist", [key(hashes[0])]) == [1]
        assert on.other("remove", key(hashes[0])) == LEASED
        assert on.one.load(hashes) == {}
        assert on.other("get_size", key(hashes[0])) == MISSING
        assert saves(on.one, (hashes, payloads))


def test_a_look_for_a_prompt_gives_few_of_its_blocks_a_lease(tmp_path: Path) -> None:
    """Blocks without one can be evicted, however often their prompt is looked up."""
    hashes, payloads = blocks(SAVE_SLOTS)
    with site(tmp_path, "-default_kv_lease_ttl=600000") as on:
        on.one.save(hashes, payloads)
        for _ in range(3):
            name = on.one.ask(hashes, wants=False)
            on.one.wait("the look", lambda name=name: name in on.one.heard)
            assert on.one.heard[name].stored == SAVE_SLOTS * BLOCK
        removed = [on.other("remove", key(one)) for one in hashes]
        assert set(removed) == {0, LEASED}
        assert removed.count(LEASED) <= SAVE_SLOTS / 4


def test_a_store_that_is_full_takes_nothing_and_costs_no_slot(tmp_path: Path) -> None:
    hashes, payloads = blocks(SAVE_SLOTS)
    with site(tmp_path, "-default_kv_lease_ttl=600000", global_segment_size="16Mi") as on:
        assert fill(on.other) == FULL
        on.one.save(hashes, payloads)
        on.one.wait("a drop", lambda: on.one.totals.get("drops_full", 0) > 0)
        # Each slot is free again, or this would wait for ever.
        on.one.save(hashes, payloads)
        assert on.one.is_usable, "a store without room still has what is in it"
        assert on.other("remove_all", True) > 0
        on.one.wait("saves to succeed", lambda: saves(on.one, (hashes, payloads)))


def fill(other: Client) -> int:
    """Put objects until nothing fits between them, and see that none can be evicted. The last code."""
    code = 0
    for size in (1 << 20, 1 << 16, SIZE):
        for index in range(10_000):
            name = f"filler-{size}-{index}"
            if (code := other("put", name, "x" * size)) != 0:
                break
            # A look gives a lease.
            assert other("batch_is_exist", [name]) == [1]
    return code


# -- batches -----------------------------------------------------------------------------------------------------------


def test_of_equal_keys_in_one_get_one_destination_is_written(tmp_path: Path) -> None:
    """Both codes are those of success. What the agent offers of such a prompt is right, and nothing is removed."""
    hashes, payloads = blocks(2)
    with site(tmp_path) as on:
        assert on.other("put_hex", "object", "aa" * 100) == 0
        codes, found = on.other("get_sized", ["object", "object"], 100)
        assert codes == [100, 100]
        assert sorted(found) == ["00" * 100, "aa" * 100]
        on.one.save(hashes, payloads)
        found = on.one.load([hashes[0], hashes[1], hashes[1]])
        assert found == {(0, 0): [payloads[0]], (0, 1): [payloads[1]]}
        assert on.other("get_size", key(hashes[1])) == SIZE


def test_a_batch_of_nothing_is_no_fault(tmp_path: Path) -> None:
    with site(tmp_path) as on:
        assert on.other("batch_is_exist", []) == []
        assert on.one.answer(on.one.ask([])).ready == 0
        on.one.save([], [])
        assert saves(on.one, blocks(2))


def test_what_is_evicted_after_the_look_is_a_miss_for_that_prompt(tmp_path: Path) -> None:
    hashes, payloads = blocks(4)
    with site(tmp_path) as on:
        on.one.save(hashes, payloads)
        name = on.one.ask(hashes, wants=False)
        on.one.wait("the look", lambda: name in on.one.heard and on.one.heard[name].stored is not None)
        assert on.one.heard[name].stored == 4 * BLOCK
        assert on.other("remove", key(hashes[2]), True) == 0
        on.one.want(name)
        assert on.one.answer(name).ready == 2 * BLOCK


# -- masters and owners that are gone ----------------------------------------------------------------------------------


def test_a_client_is_healthy_by_its_own_word_while_its_master_says_nothing(tmp_path: Path) -> None:
    """The agent asks the master itself, also when nobody asks for a prompt."""
    with (
        master(tmp_path / "master.log") as (port, process),
        # It waits so long for its heartbeat, and is healthy until then.
        client(tmp_path / "other.log", {"MC_RPC_TIMEOUT_MS": "60000"}) as other,
        stand_in(config_file(tmp_path, port), tmp_path / "agent.log") as one,
    ):
        assert other.join(P2P, port) == 0
        one.wait_usable()
        process.send(signal.SIGSTOP)
        one.wait_usable(False)
        assert other("health_check") == 0
        process.send(signal.SIGCONT)
        one.wait_usable()


def test_a_master_that_hangs_does_not_hold_up_an_engine_that_starts(tmp_path: Path) -> None:
    """Mooncake's setup would wait 40 s for it, and holds Python's lock meanwhile."""
    hashes, payloads = blocks(2)
    with master(tmp_path / "master.log") as (port, process):
        process.send(signal.SIGSTOP)
        with stand_in(config_file(tmp_path, port), tmp_path / "agent.log") as one:
            # One agent's thread is in the midst of joining.
            assert one.answer(one.ask(hashes)).ready == 0
            one.save(hashes, payloads)
            one.wait("a reason", lambda: "did not let a client join" in one.states["scheduler"].why)
            process.send(signal.SIGCONT)
            one.wait_usable()
            one.wait("saves to succeed", lambda: saves(one, (hashes, payloads)))


def test_a_master_that_restarts_knows_its_clients_again_and_no_object(tmp_path: Path) -> None:
    """Not the namespace's epoch either, which the engine makes known again: others must not go back behind a reset."""
    hashes, payloads = blocks(2)
    port = free_port()
    with client(tmp_path / "other.log") as other, stand_in(config_file(tmp_path, port), tmp_path / "agent.log") as one:
        with master(tmp_path / "m1.log", port=port):
            assert other.join(P2P, port) == 0
            one.wait_usable()
            one.reset()
            one.wait_usable()
            one.save(hashes, payloads)
            assert other("get", "ns:epoch") == "1"
            assert other("get_size", key(hashes[0], epoch=1)) == SIZE
        one.wait_usable(False)
        with master(tmp_path / "m2.log", port=port):
            one.wait_usable()
            one.wait("the epoch", lambda: other("get", "ns:epoch") == "1")
            assert other("get_size", key(hashes[0], epoch=1)) == MISSING
            assert one.load(hashes) == {}
            one.wait("saves to succeed", lambda: saves(one, (hashes, payloads)))
            assert other("get_size", key(hashes[0])) == MISSING, "nothing is stored in the epoch that has ended"


def test_a_dead_owner_s_objects_exist_and_cannot_be_read(tmp_path: Path) -> None:
    """For as long as the master waits for the owner. They are asked for once, and then a miss for everybody."""
    hashes, payloads = blocks(4)
    with site(tmp_path, "-client_ttl=60") as on:
        with stand_in(config_file(tmp_path, on.port), tmp_path / "owner.log") as owner:
            owner.wait_usable()
            owner.save(hashes, payloads)
            os.kill(owner.process.pid, signal.SIGKILL)
        assert on.one.load(hashes) == {}
        assert on.other("batch_is_exist", [key(hashes[0])]) == [1]
        assert on.other("get_sized", [key(hashes[0])], SIZE)[0] == [TRANSFER_FAILED]
        again = on.one.answer(on.one.ask(hashes))
        assert (again.stored, again.ready) == (0, 0)
        assert on.other("batch_is_exist", [key(hashes[0])]) == [1], "what can be right again is not removed"


def test_puts_to_a_dead_owner_fail_late_and_hold_no_slot(tmp_path: Path) -> None:
    """A second each. The store stays in use, and takes blocks again once another lends it memory."""
    hashes, payloads = blocks(4)
    with site(tmp_path, mode="standalone-store", global_segment_size=0) as on:
        assert saves(on.one, (hashes, payloads))
        on.other.stop()
        on.one.save(*blocks(4, seed=1))
        on.one.wait("a drop", lambda: on.one.totals.get("drops_transfer", 0) > 0)
        assert on.one.load(hashes) == {}
        with client(tmp_path / "lender.log") as lender:
            assert lender.join(P2P, on.port) == 0
            seeds = iter(range(2, 1000))
            on.one.wait("saves to succeed", lambda: saves(on.one, blocks(4, seed=next(seeds))))


# -- memory ------------------------------------------------------------------------------------------------------------

_REGISTER = """
import sys, time
from pathlib import Path
from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.agent.link import StoreLink
from mooncake_store_connector.counters import Counters
arena, _ = Arena.create(4096, 16)
nothing = lambda *_: None
for arenas in ([arena], [arena, arena]):
    link = StoreLink(Path(sys.argv[1]), "ns", "", arenas, nothing, nothing, Counters())
    link.start()
    while not (link.is_usable or "registered" in link.why):
        time.sleep(0.01)
    print(link.is_usable, link.why, flush=True)
    link.close()
"""


def test_memory_that_cannot_be_registered_is_not_used(tmp_path: Path) -> None:
    """Over TCP any memory does, over RDMA none that is not registered. What overlaps is refused by the client."""
    with master(tmp_path / "master.log") as (port, _):
        ran = subprocess.run(
            [program("python"), "-c", _REGISTER, str(config_file(tmp_path, port))],
            env={**os.environ, "PYTHONPATH": connector_path()},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    said = [line for line in ran.stdout.splitlines() if line.startswith(("True", "False"))]
    assert said == ["True ", f"False memory could not be registered: code {WRONG_SIZE}"], ran.stderr[-3000:]
