"""Asks each engine's `/health` beside its requests, so that a hang is told from a long computation.

An engine that misses checks gets no new requests. Those it holds are given up: prefill's soon, since decode can do
without it; decode's later, since nobody else has that work.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp

from disagg_router.breaker import State
from disagg_router.discovery import Discovery
from disagg_router.engines import Engine, Pool, Role
from disagg_router.metrics import Metrics
from disagg_router.settings import Settings

log = logging.getLogger(__name__)

_TICK = 0.2


class Monitor:
    """Runs the checks that are due, one at a time for each engine."""

    def __init__(
        self, session: aiohttp.ClientSession, pool: Pool, discovery: Discovery, metrics: Metrics, settings: Settings
    ) -> None:
        self._session = session
        self._pool = pool
        self._discovery = discovery
        self._metrics = metrics
        self._settings = settings
        self._timeout = aiohttp.ClientTimeout(total=settings.check_timeout)

    async def run(self) -> None:
        """Checks for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._start_due(group.create_task)
                await asyncio.sleep(_TICK)

    def _start_due(self, start: Callable[..., object]) -> None:
        now = time.monotonic()
        for engine in self._pool.watched():
            if not engine.checking and now - engine.checked_at >= self._interval(engine):
                engine.checking = True
                start(self._check(engine))
        service = self._pool.last_resort
        idle = self._settings.check_idle_interval
        if service and not service.checking and now - service.checked_at >= idle and not self._pool.listed(Role.DECODE):
            service.checking = True
            start(self._check_service(service))

    def _interval(self, engine: Engine) -> float:
        if 0 < engine.misses < self._settings.decode_check_failures:
            return 0.0
        busy = engine.in_flight or engine.misses or engine.breaker.state is not State.CLOSED
        return self._settings.check_interval if busy else self._settings.check_idle_interval

    async def _check(self, engine: Engine) -> None:
        try:
            passed = await self._is_healthy(engine)
        finally:
            engine.checking, engine.checked_at = False, time.monotonic()
        if passed:
            engine.misses, engine.hung = 0, False
            if engine.breaker.check_passed(engine.checked_at):
                log.warning("engine answers again: %s %s (%s)", engine.role, engine.url, engine.breaker.state)
            return
        engine.misses += 1
        if engine.misses >= self._settings.check_failures and engine.breaker.lose(engine.checked_at):
            self._metrics.breaker_opened.labels(engine.role, "health").inc()
            log.warning("breaker opened: %s %s missed %d health checks", engine.role, engine.url, engine.misses)
        if engine.misses >= self._patience(engine):
            engine.hung = True
            engine.end_scopes(asyncio.get_running_loop().time())

    def _patience(self, engine: Engine) -> int:
        prefill = engine.role is Role.PREFILL
        return self._settings.check_failures if prefill else self._settings.decode_check_failures

    async def _check_service(self, service: Engine) -> None:
        try:
            answers = await self._is_healthy(service)
        finally:
            service.checking, service.checked_at = False, time.monotonic()
        if not self._pool.listed(Role.DECODE):
            self._discovery.doubt(wrong=answers)

    async def _is_healthy(self, engine: Engine) -> bool:
        try:
            async with self._session.get(engine.url + "/health", timeout=self._timeout) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False
