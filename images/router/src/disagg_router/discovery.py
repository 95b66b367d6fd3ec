"""Keeps the pool's members as `vllm-router` lists them. When it does not answer, the last list stays good."""

import asyncio
import logging
import re
import time

import aiohttp

from disagg_router.engines import Engine, Member, Pool, Role

log = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
# How long the list may be wrong before whoever runs vllm-router is told to start it anew.
_SUSPECT_AFTER = 30.0
_URL = re.compile(r"http://[A-Za-z0-9.\-\[\]:]+")


def parse_members(payload: object) -> list[Member]:
    """The engines in an answer of `GET /workers`. Raises ValueError when it is no such answer."""
    workers = payload.get("workers") if isinstance(payload, dict) else None
    if not isinstance(workers, list):
        raise ValueError("no list called 'workers' in discovery's answer")
    return [member for worker in workers if (member := _parse_member(worker)) is not None]


def _parse_member(worker: object) -> Member | None:
    if not isinstance(worker, dict):
        raise ValueError("a worker in discovery's answer is no object")
    url, kind = worker.get("url"), worker.get("worker_type")
    if kind not in set(Role) or not isinstance(url, str) or not _URL.fullmatch(url):
        return None
    # Its `is_healthy` lags by many seconds, both ways; this router checks engines itself.
    return Member(url, Role(kind))


class Discovery:
    """Asks for the list again and again, and knows whether it can be believed."""

    def __init__(self, session: aiohttp.ClientSession, url: str, pool: Pool) -> None:
        self._session = session
        self._url = url
        self._pool = pool
        self._problem = ""
        self._doubt_since: float | None = None
        self.answered = False

    @property
    def up(self) -> bool:
        """Whether the last look succeeded and nothing speaks against its list."""
        return self.answered and not self._problem and self._doubt_since is None

    def is_suspect(self, now: float) -> bool:
        """Whether discovery has been silent or plainly wrong for so long that a restart is the cure."""
        return self._doubt_since is not None and now - self._doubt_since > _SUSPECT_AFTER

    async def run(self, interval: float) -> None:
        """Looks every `interval` seconds, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(interval)

    async def look(self) -> None:
        """One look at the list."""
        try:
            async with self._session.get(self._url + "/workers", timeout=_TIMEOUT) as reply:
                reply.raise_for_status()
                members = parse_members(await reply.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self._tell(f"discovery does not answer, its last list stays: {type(error).__name__}: {error}")
            self.doubt(wrong=True)
            return
        self._tell("")
        came, gone = self._pool.update(members)
        _log_changes(came, gone)
        self.answered = True
        if self._pool.last_resort is None or self._pool.listed(Role.DECODE):
            self.doubt(wrong=False)

    def doubt(self, *, wrong: bool) -> None:
        """Evidence for or against the list: silence, or a Service that answers while no engine is listed."""
        if not wrong:
            self._doubt_since = None
        elif self._doubt_since is None:
            self._doubt_since = time.monotonic()

    def _tell(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("%s", problem)
        if self._problem and not problem:
            log.warning("discovery answers again")
        self._problem = problem


def _log_changes(came: list[Engine], gone: list[Engine]) -> None:
    for engine in came:
        log.info("engine listed: %s %s", engine.role, engine.url)
    for engine in gone:
        log.info("engine no longer listed: %s %s", engine.role, engine.url)
