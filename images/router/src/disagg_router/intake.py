"""Takes request bodies in, within limits of size, time and of all bodies together."""

import asyncio

from aiohttp import web

from disagg_router import errors
from disagg_router.metrics import Metrics
from disagg_router.settings import Settings


class RefusedError(Exception):
    """A request that is answered at once. `response` says why."""

    def __init__(self, reason: str, response: web.Response) -> None:
        super().__init__(reason)
        self.reason = reason
        self.response = response


class Intake:
    """Counts what is held. Whoever takes a body in gives its bytes back when the request ends."""

    def __init__(self, metrics: Metrics, settings: Settings) -> None:
        self._metrics = metrics
        self._settings = settings
        self._held = 0

    async def read(self, request: web.Request) -> bytes:
        """The whole body. Raises RefusedError when it is too large, too slow, or more than there is room for."""
        limit = self._settings.max_body_size
        if (request.content_length or 0) > limit:
            raise RefusedError("too_large", errors.too_large(limit))
        if not request.body_exists:
            return b""
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                while chunk := await request.content.readany():
                    self._hold(len(chunk))
                    body += chunk
                    if len(body) > limit:
                        raise RefusedError("too_large", errors.too_large(limit))
        except TimeoutError:
            self.give_back(len(body))
            response = errors.error_response(
                408, "The request body did not come in time.", kind="invalid_request_error", code="request_timeout"
            )
            response.force_close()
            raise RefusedError("body_timeout", response) from None
        except BaseException:
            self.give_back(len(body))
            raise
        return bytes(body)

    def give_back(self, size: int) -> None:
        """A body of this size is held no more."""
        self._held -= size
        self._metrics.buffered.set(self._held)

    def _hold(self, size: int) -> None:
        if self._held + size > self._settings.max_buffered_bytes:
            refusal = errors.overloaded(
                "This router holds too many requests; try again later.", self._settings.retry_after
            )
            raise RefusedError("buffer_full", refusal)
        self._held += size
        self._metrics.buffered.set(self._held)
