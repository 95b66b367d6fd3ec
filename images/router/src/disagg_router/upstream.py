"""One request to one engine, and the ways in which it can fail before an answer begins."""

from dataclasses import dataclass
from enum import StrEnum

import aiohttp
from yarl import URL

from disagg_router.engines import Engine


class Outcome(StrEnum):
    """How a request to an engine ended."""

    OK = "ok"
    NO_ENGINE = "no_engine"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    HUNG = "hung"
    TIMEOUT = "timeout"
    ERROR = "error"
    REJECTED = "rejected"
    MALFORMED = "malformed"

    @property
    def reached(self) -> bool:
        """Whether the engine may have begun to work on it."""
        return self not in {Outcome.NO_ENGINE, Outcome.UNREACHABLE}


@dataclass(frozen=True)
class Upstream:
    """A request as an engine gets it. `repeatable`: it may be sent again after an engine may have begun with it."""

    method: str
    path_qs: str
    headers: list[tuple[str, str]]
    body: bytes
    repeatable: bool


def new_session(connect_timeout: float) -> aiohttp.ClientSession:
    """The HTTP client for engines.

    Each request has its own connection: a kept one may be closed by the engine just as it is used again, which cannot
    be told from a broken engine. Bodies pass as they are, so nothing is unpacked.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=5),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def send(session: aiohttp.ClientSession, engine: Engine, upstream: Upstream) -> "aiohttp.client._RequestContextManager":
    """Sends the request. The path goes out as it came in: encoded once, by the client."""
    return session.request(
        upstream.method,
        URL(engine.url + upstream.path_qs, encoded=True),
        headers=upstream.headers,
        data=upstream.body or None,
        allow_redirects=False,
    )


def outcome_of(error: Exception, engine: Engine) -> Outcome:
    """What an exception of `send`, or of reading its answer, says about the engine."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return Outcome.UNREACHABLE
    if isinstance(error, TimeoutError):
        return Outcome.HUNG if engine.hung else Outcome.TIMEOUT
    return Outcome.BROKEN
