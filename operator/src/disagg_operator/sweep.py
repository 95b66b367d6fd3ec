"""Looks at every resource now and then, and at whether the watch still tells the truth.

A watch can die without a word, and an event can be lost. So each minute all resources are listed. One that the watch
does not know in its listed version, still not a minute later, shows that the watch is behind: the process then fails
its liveness probe, and what was missed is reconciled at once in any case.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import RESOURCE
from disagg_operator.reconcile import Key

SWEEP_SECONDS: Final = 60.0
_log = logging.getLogger(__name__)


@dataclass
class Watched:
    """What the watch has brought: the version of each resource, held against lists. Also passes keys on."""

    add: Callable[[Key], None]
    versions: dict[Key, str] = field(default_factory=dict)
    _behind: dict[Key, tuple[str, str, float]] = field(default_factory=dict)

    def resource_changed(self, key: Key, version: str | None) -> None:
        """A resource is there in this version; None when it is gone."""
        if version is None:
            self.versions.pop(key, None)
        else:
            self.versions[key] = version
        self.add(key)

    def child_changed(self, key: Key) -> None:
        """A child or a pod of a resource changed."""
        self.add(key)

    def compare(self, listed: dict[Key, str], now: float) -> list[Key]:
        """Keys whose listed version the watch has not brought. A watch that moved since is behind from now only."""
        behind = {}
        for key, version in listed.items():
            seen = self.versions.get(key, "")
            if seen == version:
                continue
            known = self._behind.get(key)
            is_same = known is not None and known[1] == seen
            behind[key] = (version, seen, known[2] if known is not None and is_same else now)
        self._behind = behind
        return list(behind)

    def age(self, now: float) -> float:
        """Seconds since the watch was first seen behind, without having moved; 0 when it is not behind."""
        return max((now - since for _, _, since in self._behind.values()), default=0.0)


@dataclass
class Sweep:
    """The periodic look. `find_facts` asks what the cluster offers; a change concerns every resource."""

    client: KubeClient
    watched: Watched
    namespaces: tuple[str, ...]
    resync_seconds: float
    find_facts: Callable[[], Awaitable[ClusterFacts]]
    facts: ClusterFacts

    def current_facts(self) -> ClusterFacts:
        """What the cluster offered when last asked."""
        return self.facts

    async def run(self) -> None:
        """Sweep until cancelled."""
        loop = asyncio.get_running_loop()
        resynced = loop.time()
        period = min(SWEEP_SECONDS, self.resync_seconds)
        while True:
            await asyncio.sleep(period)
            try:
                is_due = loop.time() - resynced >= self.resync_seconds - period / 2
                if await self.look(add_all=is_due):
                    resynced = loop.time()
            except ApiError as error:
                # Nothing is known, so nothing is judged: without the API server no restart would help.
                _log.warning("cannot list the resources: %s", error.message)

    async def look(self, *, add_all: bool) -> bool:
        """List once. Adds all keys, or those that the watch missed; returns whether it was all. Raises ApiError."""
        listed = await self._list()
        behind = self.watched.compare(listed, asyncio.get_running_loop().time())
        facts = await self.find_facts()
        if facts != self.facts:
            _log.info("the cluster offers something else now: %s", facts)
            self.facts, add_all = facts, True
        self._add(listed if add_all else behind)
        return add_all

    async def _list(self) -> dict[Key, str]:
        lists = [await self.client.list(RESOURCE, namespace) for namespace in self.namespaces or ("",)]
        return {
            Key(item["metadata"]["namespace"], item["metadata"]["name"]): item["metadata"]["resourceVersion"]
            for items in lists
            for item in items
        }

    def _add(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.watched.add(key)
