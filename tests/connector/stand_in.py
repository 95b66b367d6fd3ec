"""A stand-in for an engine: speaks with a real agent as a scheduler and workers do, over memory that it shares.

What it stands in for is vLLM alone; the agent, the store and the bytes are real.
"""

import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.agent.arena import Arena, slot_size_for
from mooncake_store_connector.agent.channel import Channel
from mooncake_store_connector.frames import TRAILER

from connector.environment import connector_path, program

PAYLOAD = 8192
BLOCK = 16
SLOTS = 64
SAVE_SLOTS = 32


@dataclass
class Heard:
    """What the agent said of one prompt."""

    stored: int | None = None
    ready: int | None = None
    slots: dict[tuple[int, int], int] = field(default_factory=dict)


class StandIn:
    """One engine with its agent. `groups` are (block tokens, window or 0); `told` is the namespace's descriptor.

    `news`: whether it wants to hear of what the store takes and loses.
    """

    def __init__(
        self,
        config: Path,
        log: Path,
        namespace: str,
        groups: Sequence[tuple[int, int]],
        ranks: Sequence[str],
        told: str,
        news: bool,
    ) -> None:
        self.name = uuid.uuid4().hex
        self.groups = groups
        environment = {**os.environ, "PYTHONPATH": connector_path(), "MOONCAKE_CONFIG_PATH": str(config)}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [program("python"), "-m", "mooncake_store_connector.agent", self.name],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=environment,
            )
        self.log = log
        self.states: dict[str, m.State] = {}
        self.cuts = 0
        self.heard: dict[str, Heard] = {}
        self.saved: dict[str, int] = dict.fromkeys(ranks, 0)
        self.totals: dict[str, float] = {}
        self.news: list[m.News] = []
        self.next_slot = dict.fromkeys(ranks, 0)
        self.workers: dict[str, Channel] = {}
        self.arenas: dict[str, Arena] = {}
        size = slot_size_for(PAYLOAD, TRAILER)
        for rank in ranks:
            arena, descriptor = Arena.create(size, SLOTS)
            channel = self._connect()
            payloads = [PAYLOAD] * len(groups)
            sizes = (size, SLOTS, SAVE_SLOTS, payloads, list(groups), BLOCK, BLOCK)
            hello = m.HelloWorker(namespace, rank, len(ranks), *sizes, told)
            channel.send(hello, descriptor)
            os.close(descriptor)
            self.workers[rank], self.arenas[rank] = channel, arena
        self.scheduler = self._connect()
        self.scheduler.send(m.HelloScheduler(news))

    def _connect(self) -> Channel:
        deadline = time.monotonic() + 90
        while True:
            try:
                return Channel.connect(self.name)
            except OSError:
                assert time.monotonic() < deadline, self.log.read_text()
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.02)

    # -- hearing ------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take what has come."""
        for rank, channel in self.workers.items():
            for message in channel.receive():
                if isinstance(message, m.Saved):
                    self.saved[rank] += message.count
        self.scheduler.flush()
        for message in self.scheduler.receive():
            match message:
                case m.State():
                    self.states["scheduler"] = message
                    self.cuts += not message.is_usable
                case m.Stored(request, tokens):
                    self.heard.setdefault(request, Heard()).stored = tokens
                case m.Ready(request, tokens):
                    self.heard.setdefault(request, Heard()).ready = tokens
                case m.Slots(request, groups, blocks, slots):
                    pairs = zip(zip(groups, blocks, strict=True), slots, strict=True)
                    self.heard.setdefault(request, Heard()).slots.update(pairs)
                case m.Kept() | m.Gone() | m.AllGone():
                    self.news.append(message)
                case m.Totals(sums):
                    self.totals.update(sums)

    def wait(self, what: str, check: object, seconds: float = 60) -> None:
        """Poll until `check()` is true."""
        assert callable(check)
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"waiting for {what}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.005)
            self.poll()

    @property
    def is_usable(self) -> bool:
        self.poll()
        return "scheduler" in self.states and self.states["scheduler"].is_usable

    def wait_usable(self, wished: bool = True, seconds: float = 60) -> None:
        """Wait for the store to be usable, or not."""
        self.wait(f"the store to be {'usable' if wished else 'cut'}", lambda: self.is_usable is wished, seconds)

    # -- doing --------------------------------------------------------------------------------------------------------

    def save(self, hashes: Sequence[bytes], payloads: Sequence[bytes], group: int = 0, rank: str | None = None) -> None:
        """Hand blocks over on every rank (or one), and wait until their slots are free again."""
        for one in [rank] if rank else list(self.workers):
            arena, expected = self.arenas[one], self.saved[one] + len(hashes)
            first = self.next_slot[one] if self.next_slot[one] + len(hashes) <= SAVE_SLOTS else 0
            for offset, payload in enumerate(payloads):
                arena.slot(first + offset)[:PAYLOAD] = payload
            self.next_slot[one] = first + len(hashes)
            self.workers[one].send(m.Save(first, [group] * len(hashes), list(hashes)))
            self.wait("saves", lambda one=one, expected=expected: self.saved[one] >= expected)

    def ask(
        self,
        hashes: Sequence[bytes],
        *,
        computed: int = 0,
        promised: int = 0,
        seconds: float = 5.0,
        wants: bool = True,
    ) -> str:
        """Ask for a prompt and want all of it, at once or when `want` says so. The request's name."""
        name = uuid.uuid4().hex
        self.scheduler.send(m.Ask(name, len(hashes), promised, seconds, list(hashes[: m.SLICE])))
        for start in range(m.SLICE, len(hashes), m.SLICE):
            self.scheduler.send(m.More(name, list(hashes[start : start + m.SLICE])))
        if wants:
            self.want(name, computed)
        return name

    def want(self, name: str, computed: int = 0) -> None:
        """Let what was asked for be loaded."""
        self.scheduler.send(m.Want(name, computed))

    def answer(self, name: str, seconds: float = 60) -> Heard:
        """What came of a request."""
        self.wait("an answer", lambda: name in self.heard and self.heard[name].ready is not None, seconds)
        return self.heard[name]

    def load(self, hashes: Sequence[bytes], **keywords: float) -> dict[tuple[int, int], list[bytes]]:
        """Bytes of each block that was proven, on each rank; slots are given back."""
        name = self.ask(hashes, **keywords)  # type: ignore[arg-type]
        heard = self.answer(name)
        found = {
            place: [bytes(arena.slot(slot)[:PAYLOAD]) for arena in self.arenas.values()]
            for place, slot in heard.slots.items()
        }
        self.scheduler.send(m.HandOver(name))
        for channel in self.workers.values():
            channel.send(m.Freed(list(heard.slots.values())))
        return found

    def heard_of(self, count: int) -> list[tuple[str, int, bytes]]:
        """The next `count` blocks that news are about, each with its kind and group, and nothing beyond them."""
        self.wait("news", lambda: len(self._said()) >= count)
        found = self._said()
        assert len(found) == count, found
        self.news.clear()
        return found

    def _said(self) -> list[tuple[str, int, bytes]]:
        return [
            (type(one).__name__, group, block_hash)
            for one in self.news
            for group, block_hash in (
                [(0, b"")] if isinstance(one, m.AllGone) else zip(one.groups, one.hashes, strict=True)
            )
        ]

    def reset(self) -> None:
        """Use nothing that was stored so far."""
        before = self.cuts
        self.scheduler.send(m.Reset())
        self.wait("the store to be cut", lambda: self.cuts > before)

    def stop(self) -> None:
        """As an engine that ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        finally:
            self.process.kill()


@contextmanager
def stand_in(
    config: Path,
    log: Path,
    *,
    namespace: str = "ns",
    groups: Sequence[tuple[int, int]] = ((BLOCK, 0),),
    ranks: Sequence[str] = ("tp0pp0",),
    descriptor: str = "",
    news: bool = False,
) -> Iterator[StandIn]:
    """A running stand-in."""
    started = StandIn(config, log, namespace, groups, ranks, descriptor, news)
    try:
        yield started
    finally:
        started.stop()
