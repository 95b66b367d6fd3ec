"""The store agent on a real store: what is stored is found and proven, and nothing else is; a store may come and go."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from mooncake_store_connector.frames import TRAILER

from connector.processes import free_port, master
from connector.stand_in import BLOCK, PAYLOAD, SAVE_SLOTS, SLOTS, StandIn, stand_in
from connector.store_programs import P2P, client


def config_file(folder: Path, port: int, **changes: object) -> Path:
    values = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": f"127.0.0.1:{port}",
        "global_segment_size": "64Mi",
        "local_buffer_size": "16Mi",
        "protocol": "tcp",
        "local_hostname": "127.0.0.1",
        **changes,
    }
    path = folder / "mooncake_config.json"
    path.write_text(json.dumps(values))
    return path


def blocks(count: int, seed: int = 0) -> tuple[list[bytes], list[bytes]]:
    """Hashes and payloads."""
    draw = random.Random(seed)
    return [draw.randbytes(32) for _ in range(count)], [draw.randbytes(PAYLOAD) for _ in range(count)]


def key(block_hash: bytes, rank: str = "tp0pp0", group: int = 0, epoch: int = 0, namespace: str = "ns") -> str:
    return f"{namespace}:{epoch}:{rank}:{group}:{block_hash.hex()}"


def saves(one: StandIn, fresh: tuple[list[bytes], list[bytes]]) -> bool:
    """Whether fresh blocks can be saved and loaded: a store that is back needs a moment to find its segments again."""
    one.save(*fresh)
    return len(one.load(fresh[0])) == len(fresh[0])


def test_what_one_engine_stores_another_loads(tmp_path: Path) -> None:
    hashes, payloads = blocks(20)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with stand_in(config, tmp_path / "a.log") as one, stand_in(config, tmp_path / "b.log") as two:
            one.wait_usable()
            two.wait_usable()
            one.save(hashes[:12], payloads[:12])
            found = two.load(hashes)
            assert found == {(0, index): [payloads[index]] for index in range(12)}
            assert list(two.load(hashes, computed=5 * BLOCK)) == [(0, index) for index in range(5, 12)]
            assert two.load(blocks(4, seed=1)[0]) == {}
            # Slots that were given back are used again.
            for _ in range(2 * SLOTS // 12):
                assert len(two.load(hashes)) == 12


def test_all_ranks_or_none(tmp_path: Path) -> None:
    hashes, payloads = blocks(6)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with stand_in(config, tmp_path / "a.log", ranks=("tp0pp0", "tp1pp0")) as one:
            one.wait_usable()
            one.save(hashes[:4], payloads[:4])
            one.save(hashes[4:], payloads[4:], rank="tp0pp0")
            found = one.load(hashes)
            assert sorted(found) == [(0, index) for index in range(4)]
            assert found[0, 0] == [payloads[0]] * 2


def test_a_window_needs_its_last_blocks_alone(tmp_path: Path) -> None:
    """Group 0 sees everything, group 1 the last 40 tokens: three blocks of 16."""
    hashes, payloads = blocks(10)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with stand_in(config, tmp_path / "a.log", groups=((BLOCK, 0), (BLOCK, 40))) as one:
            one.wait_usable()
            one.save(hashes, payloads, group=0)
            one.save(hashes[4:9], payloads[4:9], group=1)
            found = one.load(hashes)
            assert sorted(place for place in found if place[0] == 1) == [(1, 6), (1, 7), (1, 8)]
            assert len([place for place in found if place[0] == 0]) == 9


@pytest.mark.parametrize("damage", ["payload", "trailer", "truncated", "larger", "foreign"])
def test_an_object_that_is_not_what_it_should_be_is_a_miss_and_makes_room(tmp_path: Path, damage: str) -> None:
    hashes, payloads = blocks(5)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with stand_in(config, tmp_path / "a.log") as one, client(tmp_path / "c.log") as other:
            one.wait_usable()
            assert other.join(P2P, port) == 0
            one.save(hashes, payloads)
            spoil(one, other, hashes, damage)
            assert sorted(one.load(hashes)) == [(0, 0), (0, 1)]
            # A miss for everybody for ten seconds; the object is gone.
            assert other("get_size", key(hashes[2])) < 0
            # A good put ends the wait.
            one.save(hashes[2:3], payloads[2:3])
            assert one.load(hashes) == {(0, index): [payloads[index]] for index in range(5)}
            one.wait("totals", lambda: one.totals.get("poison_removed") == 1)


def spoil(one: StandIn, other: object, hashes: list[bytes], damage: str) -> None:
    """Put something else in the place of block 2."""
    assert callable(other)
    name = key(hashes[2])
    if damage == "foreign":
        # A whole, sound object, of another key.
        good = other("get_hex", key(hashes[3]))
        assert other("remove", name, True) == 0
        assert other("put_hex", name, good) == 0
        return
    good = bytes.fromhex(other("get_hex", name))
    assert len(good) == PAYLOAD + TRAILER
    bad = {
        "payload": good[:100] + bytes([good[100] ^ 1]) + good[101:],
        "trailer": good[: PAYLOAD + 9] + b"\xff" + good[PAYLOAD + 10 :],
        "truncated": good[:-100],
        "larger": good + b"\0" * 100,
    }[damage]
    assert other("remove", name, True) == 0
    assert other("put_hex", name, bad.hex()) == 0


def test_prefill_promises_and_decode_waits_for_exactly_that(tmp_path: Path) -> None:
    hashes, payloads = blocks(8)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with stand_in(config, tmp_path / "a.log") as one, stand_in(config, tmp_path / "b.log") as two:
            one.wait_usable()
            two.wait_usable()
            one.save(hashes[:3], payloads[:3])
            name = two.ask(hashes, promised=8 * BLOCK, seconds=30)
            time.sleep(0.3)
            two.poll()
            assert name not in two.heard, "it waits for what was promised"
            one.save(hashes[3:], payloads[3:])
            assert two.answer(name).ready == 8 * BLOCK
            broken = blocks(8, seed=2)
            one.save(broken[0][:2], broken[1][:2])
            assert two.answer(two.ask(broken[0], promised=8 * BLOCK, seconds=0.5)).ready == 2 * BLOCK


def test_without_a_master_nothing_waits_and_it_is_joined_when_it_comes(tmp_path: Path) -> None:
    hashes, payloads = blocks(4)
    port = free_port()
    with stand_in(config_file(tmp_path, port), tmp_path / "a.log") as one:
        one.wait("a state", lambda: "scheduler" in one.states)
        assert not one.is_usable
        one.save(hashes, payloads)
        assert one.answer(one.ask(hashes)).ready == 0
        with master(tmp_path / "master.log", port=port):
            one.wait_usable()
            one.save(hashes, payloads)
            assert len(one.load(hashes)) == 4


@pytest.mark.parametrize("fault", ["hung", "killed"])
def test_a_master_that_goes_cuts_the_link_and_one_that_comes_restores_it(tmp_path: Path, fault: str) -> None:
    hashes, payloads = blocks(4)
    port = free_port()
    with stand_in(config_file(tmp_path, port), tmp_path / "a.log") as one:
        with master(tmp_path / "master.log", port=port) as (_, process):
            one.wait_usable()
            one.save(hashes, payloads)
            process.send(signal.SIGSTOP if fault == "hung" else signal.SIGKILL)
            name = one.ask(hashes)
            one.wait_usable(False, 10)
            assert one.answer(name, 10).ready == 0
            assert one.answer(one.ask(hashes), 1).ready == 0
            one.save(hashes, payloads)
            if fault == "hung":
                process.send(signal.SIGCONT)
                one.wait_usable()
                assert len(one.load(hashes)) == 4
        if fault == "killed":
            with master(tmp_path / "master2.log", port=port):
                one.wait_usable()
                one.wait("saves to succeed", lambda: saves(one, blocks(4, seed=time.monotonic_ns())))


def test_a_master_that_comes_back_elsewhere_is_found_by_the_config_file(tmp_path: Path) -> None:
    hashes, payloads = blocks(4)
    first, second = free_port(), free_port()
    with stand_in(config_file(tmp_path, first), tmp_path / "a.log") as one:
        with master(tmp_path / "m1.log", port=first):
            one.wait_usable()
        one.ask(hashes)
        one.wait_usable(False, 20)
        with master(tmp_path / "m2.log", port=second):
            config_file(tmp_path, second)
            one.wait_usable()
            one.save(hashes, payloads)
            assert len(one.load(hashes)) == 4


def test_the_owner_of_blocks_is_killed(tmp_path: Path) -> None:
    """The master still says that they are there; loads say that they are not."""
    hashes, payloads = blocks(4)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with stand_in(config, tmp_path / "a.log") as two:
            two.wait_usable()
            with stand_in(config, tmp_path / "b.log") as one:
                one.wait_usable()
                one.save(hashes, payloads)
                assert len(two.load(hashes)) == 4
                os.kill(one.process.pid, signal.SIGKILL)
                assert two.load(hashes) == {}
            two.wait("saves to reach a living segment", lambda: saves(two, blocks(4, seed=time.monotonic_ns())))


def test_a_reset_is_of_one_namespace_and_needs_every_engine(tmp_path: Path) -> None:
    hashes, payloads = blocks(4)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with (
            stand_in(config, tmp_path / "a.log") as one,
            stand_in(config, tmp_path / "b.log") as two,
            stand_in(config, tmp_path / "c.log", namespace="other") as stranger,
        ):
            for engine in (one, two, stranger):
                engine.wait_usable()
                engine.save(hashes, payloads)
            one.reset()
            two.wait_usable(False)
            assert "reset" in two.states["scheduler"].why
            one.wait_usable()
            assert one.load(hashes) == {}
            assert len(stranger.load(hashes)) == 4
            one.save(hashes, payloads)
            two.reset()
            two.wait_usable()
            assert len(two.load(hashes)) == 4


# -- news --------------------------------------------------------------------------------------------------------------


def told(kind: str, hashes: list[bytes], group: int = 0) -> list[tuple[str, int, bytes]]:
    return [(kind, group, one) for one in hashes]


def test_what_all_ranks_have_stored_is_told_to_whoever_asked(tmp_path: Path) -> None:
    hashes, payloads = blocks(6)
    ranks = ("tp0pp0", "tp1pp0")
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with (
            stand_in(config, tmp_path / "a.log", ranks=ranks, groups=((BLOCK, 0), (BLOCK, 40)), news=True) as one,
            stand_in(config, tmp_path / "b.log", namespace="other") as silent,
        ):
            one.wait_usable()
            one.save(hashes, payloads, rank=ranks[0])
            one.save(hashes[:2], payloads[:2], rank=ranks[1])
            one.save(hashes[2:3], payloads[2:3], rank=ranks[1], group=1)
            assert one.heard_of(2) == told("Kept", hashes[:2])
            one.save(hashes[2:3], payloads[2:3], rank=ranks[0], group=1)
            assert one.heard_of(1) == told("Kept", hashes[2:3], group=1)
            silent.wait_usable()
            silent.save(hashes, payloads)
            assert len(silent.load(hashes)) == 6
            assert silent.news == []


def test_what_is_found_broken_or_missing_is_told_as_gone(tmp_path: Path) -> None:
    hashes, payloads = blocks(5)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port)
        with stand_in(config, tmp_path / "a.log", news=True) as one, client(tmp_path / "c.log") as other:
            one.wait_usable()
            assert other.join(P2P, port) == 0
            one.save(hashes, payloads)
            assert one.heard_of(5) == told("Kept", hashes)
            spoil(one, other, hashes, "payload")
            one.load(hashes)
            assert one.heard_of(1) == told("Gone", hashes[2:3])
            one.save(hashes[2:3], payloads[2:3])
            assert one.heard_of(1) == told("Kept", hashes[2:3])
            # As if the master had evicted it. The search asks for the last block first of all.
            assert other("remove", key(hashes[4]), True) == 0
            assert len(one.load(hashes)) == 4
            assert one.heard_of(1) == told("Gone", hashes[4:])
            # What was never stored is nobody's loss.
            one.load(blocks(5, seed=1)[0])
            one.save(hashes[4:], payloads[4:])
            assert one.heard_of(1) == told("Kept", hashes[4:])


def test_a_reset_and_another_client_take_back_what_was_told(tmp_path: Path) -> None:
    hashes, payloads = blocks(4)
    first, second = free_port(), free_port()
    with stand_in(config_file(tmp_path, first), tmp_path / "a.log", news=True) as one:
        with master(tmp_path / "m1.log", port=first):
            one.wait_usable()
            one.save(hashes, payloads)
            assert one.heard_of(4) == told("Kept", hashes)
            one.reset()
            one.wait_usable()
            one.save(hashes[:2], payloads[:2])
            assert one.heard_of(3) == [("AllGone", 0, b""), *told("Kept", hashes[:2])]
        one.ask(hashes)
        one.wait_usable(False, 20)
        with master(tmp_path / "m2.log", port=second):
            config_file(tmp_path, second)
            one.wait_usable()
            one.save(hashes[3:], payloads[3:])
            assert one.heard_of(2) == [("AllGone", 0, b""), *told("Kept", hashes[3:])]


def test_an_engine_that_ends_takes_its_agent_along(tmp_path: Path) -> None:
    with stand_in(config_file(tmp_path, free_port()), tmp_path / "a.log") as one:
        assert one.process.stdin is not None
        one.process.stdin.close()
        assert one.process.wait(timeout=10) == 0


def test_a_long_prompt_is_searched_and_loads_what_fits(tmp_path: Path) -> None:
    hashes, payloads = blocks(5000)
    with master(tmp_path / "master.log") as (port, _):
        config = config_file(tmp_path, port, global_segment_size="128Mi")
        with stand_in(config, tmp_path / "a.log") as one:
            one.wait_usable()
            for start in range(0, 3000, SAVE_SLOTS):
                end = min(3000, start + SAVE_SLOTS)
                one.save(hashes[start:end], payloads[start:end])
            heard = one.answer(one.ask(hashes))
            assert heard.stored == 3000 * BLOCK
            assert heard.ready == (SLOTS - SAVE_SLOTS) * BLOCK
