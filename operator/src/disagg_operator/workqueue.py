"""A queue of keys: one worker at a time for a key, once for however many events, and again after a failure.

It is what turns edges into levels. A key that is added while it is being worked on is worked on again afterwards. The
queue holds keys and not events, so it is bounded by the number of resources.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_DELAY: Final = 0.5
_LAST_DELAY: Final = 60.0
_WORK_SECONDS: Final = 120.0
_log = logging.getLogger(__name__)


class TryAgainError(Exception):
    """Work came to a known end before its time. `after` is when the server asks for the next try, in seconds."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Urgency(IntEnum):
    """Why a key waits; what is first here is worked on first.

    An edit waits for no look that nobody asked for. A change of a child is mostly the echo of our own writes, or one of
    many steps, and one look for all of them is enough.
    """

    EDITED = 0
    CHANGED = 1
    DUE = 2


def _ignore_wait(seconds: float) -> None:
    """Without somebody who counts, waits are not counted."""


@dataclass
class WorkQueue(Generic[K]):
    """Keys waiting, at work, and due later.

    `work` returns the seconds after which to come back at the earliest, or None. What it raises is logged, and the key
    is tried again with a growing delay; TryAgainError is an expected trouble, anything else a fault of this program.
    `on_wait` is told how many seconds a key waited for a worker.
    """

    work: Callable[[K], Awaitable[float | None]]
    spread: Callable[[], float] = random.random
    on_wait: Callable[[float], None] = _ignore_wait
    last_finished: float = 0.0
    _waiting: dict[Urgency, dict[K, float]] = field(default_factory=lambda: {urgency: {} for urgency in Urgency})
    _at_work: set[K] = field(default_factory=set)
    _failures: dict[K, int] = field(default_factory=dict)
    _timers: dict[K, asyncio.TimerHandle] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, key: K, urgency: Urgency = Urgency.CHANGED) -> None:
        """Have a key worked on soon. A later date that it had is given up: its next work sets a new one."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._wait(key, urgency)

    def _come_due(self, key: K) -> None:
        """The date of a key has come. It has only one, and none while it waits."""
        del self._timers[key]
        self._wait(key, Urgency.DUE)

    def _wait(self, key: K, urgency: Urgency) -> None:
        """Put a key at the end of its line, unless it has a place there or in a better one."""
        known = next((at for at, keys in self._waiting.items() if key in keys), None)
        if known is not None and known <= urgency:
            return
        now = asyncio.get_running_loop().time()
        self._waiting[urgency][key] = now if known is None else self._waiting[known].pop(key)
        self._wake.set()

    def depth(self) -> int:
        """Keys that wait for a worker."""
        return sum(map(len, self._waiting.values()))

    def failing(self) -> int:
        """Keys whose last try failed."""
        return len(self._failures)

    def idle_seconds(self) -> float:
        """Seconds for which keys have waited while no work came to an end; 0 when none waits."""
        since = [begun for keys in self._waiting.values() for begun in keys.values()]
        if not since:
            return 0.0
        oldest = min(since)
        return asyncio.get_running_loop().time() - max(oldest, self.last_finished)

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._serve())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _serve(self) -> None:
        while True:
            key = await self._take()
            try:
                await self._work_on(key)
            finally:
                self._at_work.discard(key)
                self.last_finished = asyncio.get_running_loop().time()
                # It may have been added meanwhile, which no worker could take then.
                self._wake.set()

    async def _take(self) -> K:
        while True:
            for keys in self._waiting.values():
                key = next((key for key in keys if key not in self._at_work), None)
                if key is not None:
                    self.on_wait(asyncio.get_running_loop().time() - keys.pop(key))
                    self._at_work.add(key)
                    return key
            self._wake.clear()
            await self._wake.wait()

    async def _work_on(self, key: K) -> None:
        try:
            async with asyncio.timeout(_WORK_SECONDS):
                again = await self.work(key)
        except TryAgainError as trouble:
            _log.warning("%s: %s; again in %.1f s", key, trouble, self._retry(key, trouble.after or 0.0))
        except TimeoutError:
            _log.warning("%s: not done within %.0f s; again in %.1f s", key, _WORK_SECONDS, self._retry(key))
        except Exception:
            # Whatever it was: one resource's trouble must not end the worker that serves all others.
            _log.exception("%s: the operator failed; again in %.1f s", key, self._retry(key))
        else:
            self._failures.pop(key, None)
            if again is not None:
                # What came up together does not stay together: hundreds at once would keep others waiting each minute.
                self._later(key, spread_out(again, self.spread()), self._come_due)

    def _retry(self, key: K, at_least: float = 0.0) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, retry_delay(failures, self.spread()))
        self._later(key, delay, self.add)
        return delay

    def _later(self, key: K, delay: float, then: Callable[[K], None]) -> None:
        if any(key in keys for keys in self._waiting.values()):
            return  # It was added while it was being worked on, and is next in any case.
        self._timers[key] = asyncio.get_running_loop().call_later(delay, then, key)


def retry_delay(failures: int, spread: float) -> float:
    """Seconds before try number `failures` + 1: doubled each time, up to a minute, spread by up to a quarter."""
    base = min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 1, 10))
    return spread_out(base, spread)


def spread_out(delay: float, spread: float) -> float:
    """A delay made longer by up to a quarter."""
    return float(delay * (1 + spread / 4))
