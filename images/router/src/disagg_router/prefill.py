"""Leg 1: lets a prefill engine compute the prompt's KV. It may fail in any way: decode then goes on alone."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

from disagg_router import legs
from disagg_router.breaker import Permit
from disagg_router.engines import Engine, Pool
from disagg_router.metrics import Metrics
from disagg_router.settings import Settings
from disagg_router.upstream import Outcome, Upstream, outcome_of, send
from disagg_router.verdict import judge

_MAX_ANSWER = 4 << 20


@dataclass(frozen=True)
class Prefilled:
    """What leg 1 brought. `params` may be missing even when all went well."""

    outcome: Outcome
    params: legs.Body | None = None


@contextlib.contextmanager
def occupied(engine: Engine) -> Iterator[Permit]:
    """Counts a request at an engine, and gives its permit back however it ends."""
    permit = engine.breaker.permit()
    engine.in_flight += 1
    try:
        yield permit
    finally:
        engine.in_flight -= 1
        engine.breaker.release(permit)


class PrefillLeg:
    """Runs leg 1 with a deadline, on a second engine if the first cannot be reached."""

    def __init__(self, session: aiohttp.ClientSession, pool: Pool, metrics: Metrics, settings: Settings) -> None:
        self._session = session
        self._pool = pool
        self._metrics = metrics
        self._settings = settings
        self._params: legs.Body = json.loads(settings.prefill_params)

    async def run(
        self, path: str, path_qs: str, headers: list[tuple[str, str]], body: legs.Body, size: int, revision: str
    ) -> Prefilled:
        """Asks for this revision's KV of `body`'s prompt; `size` is the body's length in bytes.

        No fault of an engine raises.
        """
        start, tried = time.monotonic(), set[str]()
        seconds = self._settings.prefill_timeout + self._settings.prefill_timeout_per_mib * size / (1 << 20)
        deadline = asyncio.get_running_loop().time() + seconds
        result = Prefilled(Outcome.NO_ENGINE)
        upstream: Upstream | None = None
        while (engine := self._pool.choose_prefill(tried, revision)) is not None and len(tried) < 3:
            tried.add(engine.url)
            if upstream is None:
                sent = legs.encode(legs.derive_prefill_body(path, body, self._params))
                upstream = Upstream("POST", path_qs, headers, sent, repeatable=True)
            result = await self._attempt(engine, upstream, body, deadline)
            if result.outcome is not Outcome.UNREACHABLE:
                break
        self._metrics.prefill.labels(result.outcome).inc()
        if upstream is not None:
            self._metrics.leg_seconds.labels("prefill").observe(time.monotonic() - start)
        return result

    async def _attempt(self, engine: Engine, upstream: Upstream, body: legs.Body, deadline: float) -> Prefilled:
        with occupied(engine) as permit:
            try:
                async with asyncio.timeout_at(deadline) as scope:
                    with engine.watched(scope):
                        result = await self._ask(engine, upstream, body)
            except (aiohttp.ClientError, TimeoutError) as error:
                result = Prefilled(outcome_of(error, engine))
            judge(engine, permit, result.outcome, self._metrics)
            return result

    async def _ask(self, engine: Engine, upstream: Upstream, body: legs.Body) -> Prefilled:
        async with send(self._session, engine, upstream) as reply:
            if reply.status >= 500:
                return Prefilled(Outcome.ERROR)
            if reply.status != 200:
                return Prefilled(Outcome.REJECTED)
            answer = await _read(reply)
        if answer is None:
            return Prefilled(Outcome.MALFORMED)
        return Prefilled(Outcome.OK, legs.params_for_decode(body, answer))


async def _read(reply: aiohttp.ClientResponse) -> legs.Body | None:
    """The answer's JSON object. None when it is none, or too large to be one."""
    data = b""
    while chunk := await reply.content.readany():
        data += chunk
        if len(data) > _MAX_ANSWER:
            return None
    return legs.parse_body(data)
