"""Prefill and decode on real engines while their store fails in every way: all is answered, and no token is another.

Prompts go through prefill and decode in small batches, and in turn with them through an engine without a connector,
which decides what is right. What fails does so where it hurts most: when prefill has answered and decode was not asked
yet. Times are reported and not judged, since machines are noisy: each request's beside twice what it takes without a
connector plus a second. A full run's are kept in benchmarks/results/engines-under-faults.json.
"""

import datetime
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from results import RESULTS, read_results, write_results

from connector.environment import engine_environment
from connector.faulty_store import FaultyStore
from connector.kinds.programs import ASK, VOCABULARY, Case, Engine, make_models
from connector.processes import free_port
from connector.v0.programs import IMPATIENT

pytestmark = [pytest.mark.engines, pytest.mark.long]

CASE = Case("gqa", 32)
BATCH = 2
# The limit of what a store may cost a request.
FACTOR, PLUS_SECONDS = 2.0, 1.0
_RESULTS = RESULTS / "engines-under-faults.json"
_SMALL = {"global_segment_size": "16Mi"}


@dataclass
class Stack:
    """Prefill and decode, and an engine without a connector."""

    prefill: Engine
    decode: Engine
    plain: Engine

    def lead(self, port: int, **changes: object) -> None:
        """Tell both where their master is."""
        for one in (self.prefill, self.decode):
            one.lead(port, **changes)


Act = Callable[[FaultyStore, Stack], None]


@dataclass(frozen=True)
class Fault:
    """What fails: `once` after the second batch's prefill, `each` time after prefill. `flags` are the master's."""

    once: Act | None = None
    each: Act | None = None
    flags: tuple[str, ...] = ()
    changes: Mapping[str, object] = field(default_factory=dict)
    has_metadata_service: bool = False
    starts: Act | None = None
    """Before the first prompt."""


def _move(store: FaultyStore, stack: Stack) -> None:
    store.move()
    stack.lead(store.port)


def _kill_owner(_: FaultyStore, stack: Stack) -> None:
    """Prefill's agent lends the memory in which its blocks lie."""
    os.kill(stack.prefill.agent(), signal.SIGKILL)


def _fill(store: FaultyStore, _: Stack) -> None:
    assert store.fill() > 0


def _replace(store: FaultyStore, *, has_its_size: bool) -> None:
    # Engines may have removed some since they were listed.
    replaced = [store.replace(key, has_its_size=has_its_size) for key in store.blocks()[::10]]
    assert any(replaced)


FAULTS = {
    "no fault": Fault(),
    "master killed": Fault(once=lambda store, _: store.kill()),
    "master hung": Fault(once=lambda store, _: store.hang()),
    "master restarted at the same address": Fault(once=lambda store, _: store.restart()),
    "master restarted at another address": Fault(once=_move),
    "owner of the memory killed": Fault(once=_kill_owner),
    # What is leased is not evicted, and each block is leased by the look for it.
    "store full": Fault(starts=_fill, flags=("-default_kv_lease_ttl=600000",), changes=_SMALL),
    # A get whose lease ends before it does fails: with leases of a millisecond nothing was ever loaded.
    "eviction low": Fault(
        flags=("-eviction_high_watermark_ratio=0.2", "-eviction_ratio=0.2", "-default_kv_lease_ttl=500"), changes=_SMALL
    ),
    "every tenth object corrupted": Fault(each=lambda store, _: _replace(store, has_its_size=True)),
    "every tenth key poisoned by another size": Fault(each=lambda store, _: _replace(store, has_its_size=False)),
    "metadata service restarted": Fault(once=lambda store, _: store.restart_service(), has_metadata_service=True),
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three engines, started while there is no master."""
    engine_environment()
    folder = tmp_path_factory.mktemp("f")
    make_models(folder / "models")
    with ExitStack() as running:
        engines = [
            Engine(folder / role, folder / "models", free_port(), MC_RPC_TIMEOUT_MS=IMPATIENT)
            for role in ("p", "d", "n")
        ]
        for one in engines:
            running.callback(one.close)
        prefill, decode, plain = engines
        for one in engines:
            # With the connector's own limits of time: what is reported is what users have.
            one.open(CASE, shares=one is not plain, extra={})
        yield Stack(prefill, decode, plain)


def _batches(name: str, full_counts: bool) -> list[list[list[int]]]:
    """Prompts that no other fault has seen, from a few blocks to as long as the engines take."""
    draw, count = random.Random(name), 50 if full_counts else 6
    lengths = [100 + 1500 * index // (count - 1) for index in range(count)]
    draw.shuffle(lengths)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in lengths]
    return [prompts[start : start + BATCH] for start in range(0, count, BATCH)]


@dataclass
class Seen:
    """What came of a fault's prompts. Each request's seconds are of prefill and decode together."""

    wrong: list[int] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    loaded: int = 0
    loadable: int = 0

    def report(self, name: str) -> dict[str, object]:
        """As it is kept."""
        slowest = max(range(len(self.ours)), key=lambda index: self.ours[index] - FACTOR * self.plain[index])
        within = [ours <= FACTOR * plain + PLUS_SECONDS for ours, plain in zip(self.ours, self.plain, strict=True)]
        return {
            "fault": name,
            "requests": len(self.ours),
            "token_ids_differ": len(self.wrong),
            "within_twice_plus_a_second": sum(within),
            "slowest": {"seconds": self.ours[slowest], "without_connector": self.plain[slowest]},
            "seconds": self.ours,
            "without_connector": self.plain,
            "tokens_loaded": self.loaded,
            "tokens_loadable": self.loadable,
        }


def _run(stack: Stack, batches: list[list[list[int]]], between: Callable[[int], None]) -> Seen:
    """All batches through both arms, which take turns to be first. `between(index)` is called after prefill."""
    seen = Seen()

    def ours(index: int, prompts: list[list[int]]) -> list[list[int]]:
        first = stack.prefill.ask(prompts, [ASK] * len(prompts), max_tokens=1)
        between(index)
        second = stack.decode.ask(prompts, first.params)
        seen.ours += [round(sum(pair), 3) for pair in zip(first.each, second.each, strict=True)]
        seen.loaded += second.loaded
        seen.loadable += CASE.loadable(prompts)
        return second.ids

    def plain(_: int, prompts: list[list[int]]) -> list[list[int]]:
        first, second = stack.plain.ask(prompts, max_tokens=1), stack.plain.ask(prompts)
        seen.plain += [round(sum(pair), 3) for pair in zip(first.each, second.each, strict=True)]
        return second.ids

    for index, prompts in enumerate(batches):
        arms = (ours, plain) if index % 2 else (plain, ours)
        one, other = (arm(index, prompts) for arm in arms)
        base = index * BATCH
        seen.wrong += [base + place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
    return seen


def _check(name: str, stack: Stack, seen: Seen, requests: int) -> None:
    report = seen.report(name)
    print({key: value for key, value in report.items() if not isinstance(value, list)})
    _keep(name, report)
    assert len(seen.ours) == len(seen.plain) == requests
    assert seen.wrong == []
    for one in (stack.prefill, stack.decode):
        assert one.ask([[1] * 40]).ids, "an engine is dead"


def _keep(name: str, report: dict[str, object]) -> None:
    """Beside what is kept of other faults, and never in place of a run with more prompts."""
    kept = read_results(_RESULTS)
    if kept.get(name, {}).get("requests", 0) <= len(report["seconds"]):  # type: ignore[arg-type]
        machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept[name] = {**report, "machine": machine, "date": date}
        write_results(_RESULTS, kept)


def test_without_a_master_from_the_start(stack: Stack, full_counts: bool) -> None:
    """First, because engines have known no master yet."""
    name = "master absent at start"
    batches = _batches(name, full_counts)
    _check(name, stack, _run(stack, batches, lambda _: None), sum(map(len, batches)))


@pytest.mark.parametrize("name", FAULTS)
def test_every_request_is_answered_as_without_a_store(
    stack: Stack, full_counts: bool, name: str, tmp_path: Path
) -> None:
    fault, batches = FAULTS[name], _batches(name, full_counts)
    with FaultyStore(tmp_path) as store:
        store.start(*fault.flags, has_metadata_service=fault.has_metadata_service)
        stack.lead(store.port, metadata_server=store.metadata, **fault.changes)
        for one in (stack.prefill, stack.decode):
            one.wait_shared(CASE, seconds=600)
        if fault.starts is not None:
            fault.starts(store, stack)

        def between(index: int) -> None:
            for act in (fault.each, fault.once if index == 1 else None):
                if act is not None:
                    act(store, stack)

        seen = _run(stack, batches, between)
        _check(name, stack, seen, sum(map(len, batches)))
        if name == "no fault":
            assert seen.loaded > 0, "or else the other tests show nothing"
