"""Storing what workers hand over: a bounded queue, several requests' blocks in one call, and drops that are counted.

The queue holds slots of the workers' arenas, so its bytes are bounded by them; what waits too long is dropped, since a
prompt's blocks are worth most while others ask for them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.agent.ledger import Ledger
from mooncake_store_connector.agent.link import StoreDownError, StoreLink
from mooncake_store_connector.agent.objects import BadKeys
from mooncake_store_connector.agent.threads import give_way
from mooncake_store_connector.codes import Outcome, judge
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.frames import TRAILER, seal

logger = logging.getLogger("mooncake_store_connector")

_BATCH_BYTES: Final = 64 * 2**20
_OLDEST_SECONDS: Final = 10.0
_FULL_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Piece:
    """One block of one rank: where it lies, how long it is, and its name."""

    arena: Arena
    slot: int
    payload: int
    key: str


@dataclass(frozen=True)
class Job:
    """Pieces of one rank that were handed over together, and how many of its slots they free."""

    rank: int
    pieces: list[Piece]
    received: float


class Saver:
    """One thread that stores jobs in order.

    `freed(rank, count)` is called for each job, whatever became of it; `changed()` when `is_full` has changed.
    """

    def __init__(
        self,
        link: StoreLink,
        bad: BadKeys,
        ledger: Ledger,
        counters: Counters,
        freed: Callable[[int, int], None],
        changed: Callable[[], None],
    ) -> None:
        self._link = link
        self._bad = bad
        self._ledger = ledger
        self._counters = counters
        self._freed = freed
        self._changed = changed
        self._is_full = False
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._full_until = 0.0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="store-save", daemon=True).start()

    def add(self, job: Job) -> None:
        """Take a job."""
        with self._ready:
            self._jobs.append(job)
            self._ready.notify()

    @property
    def is_full(self) -> bool:
        """Whether the store had no room for what was last put."""
        return self._is_full

    @property
    def depth(self) -> int:
        """Jobs that wait."""
        return len(self._jobs)

    def _run(self) -> None:
        give_way()
        while True:
            with self._ready:
                while not self._jobs:
                    self._ready.wait()
                batch = self._take()
            try:
                self._store([piece for job in batch for piece in job.pieces], min(job.received for job in batch))
            except Exception:
                logger.exception("Saving failed")
                self._counters.add("save_errors")
            for job in batch:
                self._freed(job.rank, len(job.pieces))

    def _take(self) -> list[Job]:
        """Jobs for one call: the first, and what fits beside it."""
        batch = [self._jobs.popleft()]
        size = _size(batch[0].pieces)
        while self._jobs and size + _size(self._jobs[0].pieces) <= _BATCH_BYTES:
            batch.append(self._jobs.popleft())
            size += _size(batch[-1].pieces)
        return batch

    def _store(self, pieces: Sequence[Piece], received: float) -> None:
        now = time.monotonic()
        if not self._link.is_usable:
            self._counters.add("drops_store_down", len(pieces))
        elif now < self._full_until:
            self._counters.add("drops_store_full", len(pieces))
        elif now - received > _OLDEST_SECONDS:
            self._counters.add("drops_too_old", len(pieces))
        else:
            # Equal keys cannot share a batch: what becomes of the second is not defined.
            unique = list({piece.key: piece for piece in pieces}.values())
            self._put(unique)

    def _put(self, pieces: Sequence[Piece]) -> None:
        started, life = time.monotonic(), self._link.life
        for piece in pieces:
            seal(piece.arena.slot(piece.slot), piece.payload, piece.key)
        try:
            codes = self._link.call(
                "batch_put_from",
                [piece.key for piece in pieces],
                [piece.arena.slot_address(piece.slot) for piece in pieces],
                [piece.payload + TRAILER for piece in pieces],
                self._link.placement(),
                size=_size(pieces),
            )
        except StoreDownError:
            self._counters.add("drops_store_down", len(pieces))
            return
        self._counters.add("save_seconds", time.monotonic() - started)
        outcomes = [judge(code) for code in codes]
        self._count(pieces, outcomes)
        if self._ledger.is_wanted:
            taken = [piece.key for piece, one in zip(pieces, outcomes, strict=True) if one is Outcome.OK]
            self._ledger.kept(taken, time.monotonic(), life)

    def _count(self, pieces: Sequence[Piece], outcomes: Sequence[Outcome]) -> None:
        for piece, outcome in zip(pieces, outcomes, strict=True):
            if outcome is Outcome.OK:
                self._counters.add("saved_blocks")
                self._counters.add("saved_bytes", piece.payload)
                self._bad.clear(piece.key)
            else:
                self._counters.add(f"drops_{outcome.value}")
        is_full = Outcome.FULL in outcomes
        if is_full:
            self._full_until = time.monotonic() + _FULL_PAUSE_SECONDS
        if is_full is not self._is_full:
            self._is_full = is_full
            self._changed()


def _size(pieces: Sequence[Piece]) -> int:
    return sum(piece.payload + TRAILER for piece in pieces)
