"""A queue of keys: one worker at a time for a key, once for however many events, and again after a failure.

It is what turns edges into levels. A key that is added while it is being worked on is worked on again afterwards. The
queue holds keys and not events, so it is bounded by the number of resources.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_DELAY: Final = 0.5
_LAST_DELAY: Final = 60.0
_WORK_SECONDS: Final = 120.0
_log = logging.getLogger(__name__)


@dataclass
class WorkQueue(Generic[K]):
    """Keys waiting, at work, and due later. `work` returns the seconds after which to come back, or None."""

    work: Callable[[K], Awaitable[float | None]]
    spread: Callable[[], float] = random.random
    _waiting: dict[K, None] = field(default_factory=dict)
    _at_work: set[K] = field(default_factory=set)
    _failures: dict[K, int] = field(default_factory=dict)
    _timers: dict[K, asyncio.TimerHandle] = field(default_factory=dict)
    _wake: asyncio.Condition = field(default_factory=asyncio.Condition)
    last_finished: float = 0.0

    async def add(self, key: K) -> None:
        """Have a key worked on soon."""
        async with self._wake:
            timer = self._timers.pop(key, None)
            if timer is not None:
                timer.cancel()
            self._waiting[key] = None
            self._wake.notify()

    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    def failing(self) -> int:
        """Keys whose last try failed."""
        return len(self._failures)

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        self.last_finished = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._worker())
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _worker(self) -> None:
        while True:
            key = await self._take()
            try:
                await self._work_on(key)
            finally:
                await self._give_back(key)

    async def _take(self) -> K:
        async with self._wake:
            while True:
                free = next((key for key in self._waiting if key not in self._at_work), None)
                if free is not None:
                    del self._waiting[free]
                    self._at_work.add(free)
                    return free
                await self._wake.wait()

    async def _give_back(self, key: K) -> None:
        async with self._wake:
            self._at_work.discard(key)
            self.last_finished = asyncio.get_running_loop().time()
            self._wake.notify_all()

    async def _work_on(self, key: K) -> None:
        try:
            async with asyncio.timeout(_WORK_SECONDS):
                again = await self.work(key)
        except Exception:
            # Whatever it was: one resource's trouble must not end the worker that serves all others.
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = retry_delay(failures, self.spread())
            _log.exception("%s failed (%d in a row); again in %.1f s", key, failures, delay)
            self._later(key, delay)
            return
        self._failures.pop(key, None)
        if again is not None:
            self._later(key, again)

    def _later(self, key: K, delay: float) -> None:
        old = self._timers.pop(key, None)
        if old is not None:
            old.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(delay, self._due, key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        task = asyncio.get_running_loop().create_task(self.add(key))
        task.add_done_callback(_tell_failure)


def _tell_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a key could not be queued: %r", task.exception())


def retry_delay(failures: int, spread: float) -> float:
    """Seconds before try number `failures` + 1: doubled each time, up to a minute, spread by up to a quarter."""
    base = min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** min(failures - 1, 10))
    return float(base * (1 + spread / 4))
