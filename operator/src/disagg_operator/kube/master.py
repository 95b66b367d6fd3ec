"""Asks a Mooncake master what it has: read-only pages of its admin port, with a short time limit."""

import asyncio
import logging
from typing import Final

import aiohttp

_TIMEOUT_SECONDS: Final = 3.0
_log = logging.getLogger(__name__)


async def count_segments(base_url: str) -> int | None:
    """Segments registered with the master behind `base_url` (http://host:port), or None when it cannot be asked."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    try:
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS + 1),
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{base_url}/get_all_segments") as answer,
        ):
            if answer.status != 200:
                return None
            text = await answer.text()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        _log.debug("master %s: %r", base_url, error)
        return None
    return sum(1 for line in text.splitlines() if line.strip())
