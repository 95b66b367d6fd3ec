"""KV events of what the store took and lost, as vLLM publishes them beside those of the engine's own cache."""

import itertools
import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connector.processes import master
from connector.store_programs import P2P, Client, client
from connector.test_agent import config_file
from connector.v0.programs import Worker
from connector.v1.chain import continue_prompt
from connector.v1.programs import ASK, SCRIPT, Engine

BLOCK = 16
_draw = random.Random(7)
_numbers = itertools.count()
Event = dict[str, Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A folder with a config file, and the master's port."""
    folder = tmp_path_factory.mktemp("events")
    with master(folder / "master.log") as (port, _):
        config_file(folder, port, local_buffer_size="1Mi")
        yield folder, port


@pytest.fixture(scope="module")
def bench(store: tuple[Path, int]) -> Iterator[Worker]:
    """One program for all engines: loading vLLM takes longer than all that they do."""
    folder, _ = store
    env = {"MOONCAKE_CONFIG_PATH": str(folder / "mooncake_config.json"), "PYTHONHASHSEED": "0"}
    started = Worker("events", folder / "engines.log", env, script=SCRIPT)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module", params=["Scheduler", "AsyncScheduler"])
def scheduler(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(bench: Worker, **options: object) -> Iterator[Engine]:
    """An engine with a namespace of its own: a reset is for good."""
    made = Engine(bench, f"engine-{next(_numbers)}")
    made.open(**{"events": True, "extra": {"cache_prefix": made.name, "wait_ms": 20_000}, **options})
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def engine(bench: Worker, scheduler: str) -> Iterator[Engine]:
    with opened(bench, scheduler=scheduler) as made:
        yield made


@pytest.fixture
def own(bench: Worker, scheduler: str) -> Iterator[Engine]:
    """One that a test may spoil."""
    with opened(bench, scheduler=scheduler) as made:
        yield made


@pytest.fixture
def other(store: tuple[Path, int]) -> Iterator[Client]:
    """Somebody else who may change what is stored."""
    folder, port = store
    with client(folder / "client.log") as one:
        assert one.join(P2P, port) == 0
        yield one


def new_prompt(tokens: int) -> list[int]:
    return [_draw.randrange(50_000) for _ in range(tokens)]


def of(events: Iterable[Event], kind: str, medium: str) -> list[Event]:
    return [event for event in events if event["type"] == kind and event["medium"] == medium]


def hashes(events: Iterable[Event]) -> list[object]:
    return [one for event in events for one in event["block_hashes"]]


def by_block(events: Iterable[Event]) -> dict[tuple[int, object], Event]:
    """What is said of each block, in whichever events it came. Each comes once."""
    found: dict[tuple[int, object], Event] = {}
    for event in events:
        parent, size = event["parent_block_hash"], event["block_size"]
        assert len(event["token_ids"]) == size * len(event["block_hashes"])
        shared = {name: event[name] for name in event if name.startswith(("lora", "kv_cache_spec", "session"))}
        for index, one in enumerate(event["block_hashes"]):
            assert (event["group_idx"], one) not in found
            found[event["group_idx"], one] = {
                **shared,
                "block_size": size,
                "parent": parent,
                "tokens": event["token_ids"][index * size : (index + 1) * size],
                "extra_keys": event["extra_keys"][index],
            }
            parent = one
    return found


def put_instead(other: Client, name: str, data: bytes) -> None:
    """Replace an object. The master may choose the memory of an agent that was killed, as long as it does not know."""
    deadline = time.monotonic() + 60
    assert other("remove", name, True) == 0
    while other("put_hex", name, data.hex()) != 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("tokens", [17, 160, 3 * 512 + 100])
def test_the_store_s_blocks_are_told_as_the_engine_s_own_and_no_later_than_it_rests(
    engine: Engine, tokens: int
) -> None:
    prompt = new_prompt(tokens)
    engine.complete(prompt)
    events = engine.events()
    told = by_block(of(events, "BlockStored", "CPU"))
    assert told == by_block(of(events, "BlockStored", "GPU"))
    assert [token for one in told.values() for token in one["tokens"]] == prompt[: tokens // BLOCK * BLOCK]
    engine.complete(new_prompt(40))
    assert len(by_block(of(engine.events(), "BlockStored", "CPU"))) == 2


def test_a_salt_is_told(engine: Engine) -> None:
    name = "salted"
    engine("add", name, new_prompt(64), 1, None, "pepper")
    engine.run()
    events = engine.events()
    told = by_block(of(events, "BlockStored", "CPU"))
    assert told == by_block(of(events, "BlockStored", "GPU"))
    assert [one["extra_keys"] for one in told.values()] == [["pepper"], None, None, None]


def test_groups_are_told_apart(bench: Worker) -> None:
    with opened(bench, windows=[None, 40]) as engine:
        engine.complete(new_prompt(320))
        told = by_block(of(engine.events(), "BlockStored", "CPU"))
    for group, spec in ((0, ("full_attention", None)), (1, ("sliding_window", 40))):
        found = [one for key, one in told.items() if key[0] == group]
        assert found
        assert {(one["kv_cache_spec_kind"], one["kv_cache_spec_sliding_window"]) for one in found} == {spec}
    chain = {one["parent"]: one["tokens"] for (group, _), one in told.items() if group == 0}
    assert len(chain) == 20
    assert all(chain[one["parent"]] == one["tokens"] for one in told.values())


def test_what_is_stored_again_is_not_told_again(engine: Engine) -> None:
    prompt = new_prompt(100)
    params = engine.complete(prompt, 1, ASK).params
    assert len(hashes(of(engine.events(), "BlockStored", "CPU"))) == 6
    engine("forget")
    assert engine.complete(prompt, 1, params).external == 96
    found = engine.events()
    assert of(found, "BlockStored", "GPU") != []
    assert [event for event in found if event.get("medium") == "CPU"] == []


def test_a_damaged_object_is_told_as_removed_and_told_anew_when_a_good_one_comes(engine: Engine, other: Client) -> None:
    prompt = new_prompt(100)
    params = engine.complete(prompt, 1, ASK).params
    stored = hashes(of(engine.events(), "BlockStored", "CPU"))
    name = engine("keys", prompt)[3]
    good = bytes.fromhex(other("get_hex", name))
    put_instead(other, name, good[:50] + bytes([good[50] ^ 1]) + good[51:])
    engine("forget")
    answer = engine.complete(prompt, 4, params)
    assert answer.tokens == continue_prompt(prompt, 4)
    assert answer.external == 3 * BLOCK
    assert hashes(of(engine.events(), "BlockRemoved", "CPU")) == stored[3:4]
    engine("forget")
    engine.complete(prompt)
    assert hashes(of(engine.events(), "BlockStored", "CPU")) == stored[3:4]


def test_a_reset_takes_back_what_was_told_and_the_engine_s_own_as_ever(own: Engine) -> None:
    prompt = new_prompt(100)
    own.complete(prompt)
    stored = hashes(of(own.events(), "BlockStored", "CPU"))
    assert len(stored) == 6
    assert own("reset")
    own.wait_usable()
    events = own.events()
    assert hashes(of(events, "BlockRemoved", "CPU")) == stored
    assert [event["type"] for event in events if event["type"] != "BlockRemoved"] == ["AllBlocksCleared"]
    own.complete(prompt)
    assert hashes(of(own.events(), "BlockStored", "CPU")) == stored


def test_an_agent_that_dies_takes_its_events_along_and_nothing_else(own: Engine) -> None:
    prompt = new_prompt(100)
    own.complete(prompt)
    stored = hashes(of(own.events(), "BlockStored", "CPU"))
    os.kill(own.agent, signal.SIGKILL)
    own.wait_usable(False)
    answer = own.complete(prompt, 4)
    assert answer.tokens == continue_prompt(prompt, 4)
    assert hashes(of(own.events(), "BlockRemoved", "CPU")) == stored
    own.wait_usable()
    fresh = new_prompt(100)
    own.complete(fresh)
    events = own.events()
    assert of(events, "BlockRemoved", "CPU") == []
    assert len(hashes(of(events, "BlockStored", "CPU"))) == 6


def test_a_fault_of_events_is_none_of_the_engine_s(own: Engine) -> None:
    own("lose_words")
    prompt = new_prompt(100)
    assert own.complete(prompt, 4).tokens == continue_prompt(prompt, 4)
    events = own.events()
    assert of(events, "BlockStored", "GPU") != []
    assert of(events, "BlockStored", "CPU") == []
    assert own.count("events_dropped") > 0


def test_where_nobody_wants_events_nothing_is_kept(bench: Worker) -> None:
    prompt = new_prompt(100)
    with opened(bench, events=False) as engine:
        params = engine.complete(prompt, 1, ASK).params
        engine("forget")
        assert engine.complete(prompt, 1, params).external == 96
        assert engine("notes") is None
        assert engine.events() == []


def test_an_engine_that_only_loads_tells_of_nothing(bench: Worker) -> None:
    with opened(bench, role="kv_consumer") as engine:
        engine.complete(new_prompt(100))
        assert engine("notes") is None
        assert of(engine.events(), "BlockStored", "CPU") == []
