"""Asks a Mooncake master what it has: a read-only page of its admin port, with a short time limit."""

import asyncio
import logging
from typing import Final

import aiohttp

_TIMEOUT_SECONDS: Final = 3.0
_MAX_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)


async def list_segments(base_url: str) -> tuple[str, ...] | None:
    """Names of the segments registered with the master behind `base_url` (http://host:port).

    A name is the address that its engine was told, with a port. None when the master cannot be asked.
    """
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    try:
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS + 1),
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{base_url}/get_all_segments") as answer,
        ):
            if answer.status != 200:
                return None
            text = (await answer.content.read(_MAX_BYTES)).decode(errors="replace")
    except (aiohttp.ClientError, OSError) as error:
        _log.debug("master %s: %r", base_url, error)
        return None
    return tuple(line.strip() for line in text.splitlines() if line.strip())
