"""Leg 2: brings a decode engine's answer to the client as it is made, from another engine if the first fails in time.

Until the first byte went to the client, any failure may be mended by another engine. After it, the client is told: a
stream of events ends with an error event and without `[DONE]`, anything else with a cut connection.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from disagg_router import errors, legs
from disagg_router.breaker import Permit
from disagg_router.engines import Engine, Pool
from disagg_router.metrics import Metrics
from disagg_router.prefill import occupied
from disagg_router.settings import Settings
from disagg_router.sse import EventStream
from disagg_router.upstream import Outcome, Upstream, outcome_of, send
from disagg_router.verdict import judge

log = logging.getLogger(__name__)

# An answer up to this size is read whole before it is passed on, so that a cut in it can be mended.
_WHOLE = 1 << 20
# At most this many engines may begin with one request: what kills an engine must not be handed round.
_MAX_BEGUN = 2
_WAIT_STEP = 0.25


class AttemptError(Exception):
    """An engine failed before the client saw anything. `answer` is its own error, if it gave one."""

    def __init__(self, outcome: Outcome, answer: web.Response | None = None) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.answer = answer


class ClientGoneError(Exception):
    """The client takes no more bytes."""


@dataclass
class Begun:
    """The answer to the client, once it has begun."""

    response: web.StreamResponse | None = None


class Relay:
    """Answers requests from decode engines."""

    def __init__(self, session: aiohttp.ClientSession, pool: Pool, metrics: Metrics, settings: Settings) -> None:
        self._session = session
        self._pool = pool
        self._metrics = metrics
        self._settings = settings
        self.closing = False

    async def answer(
        self, request: web.Request, upstream: Upstream, *, prompt: bool, revision: str = ""
    ) -> web.StreamResponse:
        """The client's answer. `prompt`: the stream of a (chat) completion, which ends with `[DONE]`.

        `revision` is that of the KV which prefill may have left for it.
        """
        tried: set[str] = set()
        begun, last = 0, None
        deadline = time.monotonic() + self._settings.decode_wait
        while True:
            engine = self._pool.choose_decode(tried, revision)
            if engine is None:
                if last is not None:
                    return last
                if not await self._wait(deadline):
                    return self._give_up(begun)
                # The Service was tried for want of a list; who comes now, comes by the list.
                tried = {url for url in tried if url == self._settings.direct_decode_url}
                continue
            tried.add(engine.url)
            try:
                return await self._attempt(request, upstream, engine, prompt=prompt)
            except AttemptError as failed:
                if self._pool.is_rest(engine):
                    # Behind the Service are only pods that leave: what they say in their last seconds is no answer.
                    if not upstream.repeatable:
                        return self._give_up(begun)
                    continue
                begun += failed.outcome.reached
                last = failed.answer or last
                if begun >= (_MAX_BEGUN if upstream.repeatable else 1):
                    return last or errors.engine_failed(self._settings.retry_after)

    def _give_up(self, begun: int) -> web.Response:
        if begun:
            return errors.engine_failed(self._settings.retry_after)
        self._metrics.unserved.inc()
        return errors.no_decode(self._settings.retry_after)

    async def _wait(self, deadline: float) -> bool:
        """Waits a moment for an engine to come. False when the time is up."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        self._pool.changed.clear()
        with self._metrics.waiting.track_inprogress():
            try:
                async with asyncio.timeout(min(_WAIT_STEP, left)):
                    await self._pool.changed.wait()
            except TimeoutError:
                pass
        return True

    async def _attempt(
        self, request: web.Request, upstream: Upstream, engine: Engine, *, prompt: bool
    ) -> web.StreamResponse:
        begun = Begun()
        with occupied(engine) as permit:
            try:
                async with asyncio.timeout(self._settings.idle_timeout) as scope:
                    with engine.watched(scope):
                        await self._pass_on(request, upstream, engine, permit, begun, scope, prompt=prompt)
            except (aiohttp.ClientError, TimeoutError) as error:
                outcome = outcome_of(error, engine)
                self._count(engine, permit, outcome)
                if begun.response is None:
                    raise AttemptError(outcome) from error
                await self._end_broken(request, begun.response)
            except AttemptError as failed:
                self._count(engine, permit, failed.outcome)
                raise
            except ClientGoneError:
                _cut(request)
                begun.response = begun.response or web.Response(status=499)
        if begun.response is None:
            raise AttemptError(Outcome.BROKEN)
        return begun.response

    def _count(self, engine: Engine, permit: Permit, outcome: Outcome) -> None:
        self._metrics.decode.labels(outcome).inc()
        judge(engine, permit, outcome, self._metrics)

    async def _pass_on(
        self,
        request: web.Request,
        upstream: Upstream,
        engine: Engine,
        permit: Permit,
        begun: Begun,
        scope: asyncio.Timeout,
        *,
        prompt: bool,
    ) -> None:
        start = time.monotonic()
        async with send(self._session, engine, upstream) as reply:
            streamed = reply.content_type == "text/event-stream"
            if reply.status >= 500 or (not streamed and (reply.content_length or _WHOLE + 1) <= _WHOLE):
                await self._pass_whole(reply, engine, permit, begun)
                self._metrics.leg_seconds.labels("decode").observe(time.monotonic() - start)
                return
            events = EventStream() if streamed and prompt else None
            while chunk := await reply.content.readany():
                data = events.feed(chunk) if events else chunk
                if not data:
                    continue
                if begun.response is None:
                    self._count(engine, permit, Outcome.OK)
                    self._metrics.leg_seconds.labels("decode").observe(time.monotonic() - start)
                    begun.response = await self._begin(request, reply)
                await _write(begun.response, data)
                if not engine.hung:
                    scope.reschedule(asyncio.get_running_loop().time() + self._settings.idle_timeout)
            if events and not events.done:
                raise aiohttp.ClientPayloadError("the stream ended without [DONE]")
            if begun.response is None:
                begun.response = await self._begin(request, reply)
            if events and events.rest():
                await _write(begun.response, events.rest())
            await begun.response.write_eof()

    async def _pass_whole(self, reply: aiohttp.ClientResponse, engine: Engine, permit: Permit, begun: Begun) -> None:
        body = await reply.read()
        headers = legs.forward_headers(reply.headers.items(), drop=frozenset({"content-length"}))
        answer = web.Response(status=reply.status, headers=headers, body=body)
        if self.closing:
            answer.force_close()
        if reply.status >= 500:
            raise AttemptError(Outcome.ERROR, answer)
        self._count(engine, permit, Outcome.OK if reply.status < 400 else Outcome.REJECTED)
        begun.response = answer

    async def _begin(self, request: web.Request, reply: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=legs.forward_headers(reply.headers.items()))
        if self.closing:
            response.force_close()
        try:
            await response.prepare(request)
        except ConnectionError as error:
            raise ClientGoneError from error
        return response

    async def _end_broken(self, request: web.Request, response: web.StreamResponse) -> None:
        self._metrics.broken_streams.inc()
        if response.content_type != "text/event-stream":
            _cut(request)
            return
        event = errors.error_event(
            "The engine stopped in the middle of the answer.", kind="api_error", code="engine_failed"
        )
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                await response.write(event)
                await response.write_eof()
        except (ConnectionError, TimeoutError):
            _cut(request)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    try:
        await response.write(data)
    except ConnectionError as error:
        raise ClientGoneError from error


def _cut(request: web.Request) -> None:
    """Ends the client's connection so that the answer does not look whole."""
    if request.transport is not None:
        request.transport.abort()
