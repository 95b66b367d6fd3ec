"""Learns each engine's KV revision from its pod's label: engines of two revisions have nothing to share.

It is a hint. Where the API server does not answer, or a pod has no such label, the revision is not known, and an engine
is paired with any other; the keys in the store make that a miss and never wrong KV.
"""

import asyncio
import logging
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from disagg_router.engines import Pool
from disagg_router.settings import Settings

log = logging.getLogger(__name__)

_INTERVAL = 0.25
# Pods whose label nobody wrote are asked for again after a while only.
_ASK_AGAIN = 15.0
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


def parse_revisions(payload: object, label: str) -> dict[str, str]:
    """KV revision by address, from a list of pods. Pods without the label are left out. Raises ValueError."""
    pods = payload.get("items") if isinstance(payload, dict) else None
    if not isinstance(pods, list):
        raise ValueError("no list of pods in the API server's answer")
    found = {}
    for pod in pods:
        revision = pod.get("metadata", {}).get("labels", {}).get(label)
        if revision:
            for address in pod.get("status", {}).get("podIPs", []):
                found[address["ip"]] = revision
    return found


class Revisions:
    """Looks at the pods whenever an engine is listed whose revision is not known."""

    def __init__(self, session: aiohttp.ClientSession, pool: Pool, settings: Settings) -> None:
        self._session = session
        self._pool = pool
        self._url = settings.pods_url
        self._label = settings.pair_label
        self._account = settings.service_account_dir
        self._asked: frozenset[str] = frozenset()
        self._asked_at = float("-inf")
        self._problem = ""

    async def run(self) -> None:
        """Looks for ever; not at all without a URL."""
        while self._url:
            unknown = frozenset(engine.url for engine in self._pool.unpaired())
            if unknown and (unknown - self._asked or time.monotonic() - self._asked_at > _ASK_AGAIN):
                self._asked, self._asked_at = unknown, time.monotonic()
                await self.look()
            await asyncio.sleep(_INTERVAL)

    async def look(self) -> None:
        """One look at the pods."""
        try:
            revisions = parse_revisions(await self._list_pods(), self._label)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, AttributeError, KeyError) as error:
            self._tell(f"the pods cannot be listed, so KV revisions are not told apart: {error!r}")
            return
        self._tell("")
        for engine in self._pool.unpaired():
            engine.revision = revisions.get(urlsplit(engine.url).hostname or "", "")

    async def _list_pods(self) -> object:
        # Both are read each time: a token is rotated about once an hour.
        token, trust = await asyncio.to_thread(_read_account, self._account)
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        async with self._session.get(self._url, headers=headers, ssl=trust, timeout=_TIMEOUT) as reply:
            reply.raise_for_status()
            return await reply.json()

    def _tell(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("%s", problem)
        if self._problem and not problem:
            log.warning("pods are listed again")
        self._problem = problem


def _read_account(directory: Path) -> tuple[str, ssl.SSLContext]:
    return (directory / "token").read_text().strip(), ssl.create_default_context(cafile=directory / "ca.crt")
