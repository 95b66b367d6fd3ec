"""Looks at every resource now and then, and at whether the watch still tells the truth.

A watch can die without a word, and an event can be lost. So each minute all resources are listed. One that the watch
does not know in its listed version, still not a minute later, shows that the watch is behind: the process then fails
its liveness probe, and what was missed is reconciled at once in any case.

With rights in some namespaces only, one of them can be gone, or its Role not there yet. That is told once and keeps the
others from nothing. kopf would fail on it, so it is not watched until it can be read: then the process ends, to be
started again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import RESOURCE
from disagg_operator.reconcile import Key
from disagg_operator.workqueue import Urgency

SWEEP_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1
_log = logging.getLogger(__name__)


@dataclass
class Watched:
    """What the watch has brought: the version of each resource, held against lists. Also passes keys on."""

    add: Callable[[Key, Urgency], None]
    versions: dict[Key, str] = field(default_factory=dict)
    _generations: dict[Key, int] = field(default_factory=dict)
    _behind: dict[Key, tuple[str, str, float]] = field(default_factory=dict)

    def resource_changed(self, key: Key, version: str, generation: int) -> None:
        """A resource is there in this version. A generation that is new is an edit; all else is an echo of a status."""
        urgency = Urgency.CHANGED if self._generations.get(key) == generation else Urgency.EDITED
        self.versions[key], self._generations[key] = version, generation
        self.add(key, urgency)

    def resource_gone(self, key: Key) -> None:
        """A resource is there no more."""
        self.versions.pop(key, None)
        self._generations.pop(key, None)
        self.add(key, Urgency.CHANGED)

    def child_changed(self, key: Key) -> None:
        """A child or a pod of a resource changed."""
        self.add(key, Urgency.CHANGED)

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


async def find_readable(client: KubeClient, namespaces: Iterable[str]) -> tuple[str, ...]:
    """Those of the namespaces whose resources may be listed. Raises ApiError when nobody can tell."""
    readable = []
    for namespace in namespaces:
        try:
            async with aclosing(client.walk(RESOURCE, namespace)) as resources:
                await anext(resources, None)
        except ApiError as error:
            if not error.is_forbidden:
                raise
            _tell_unreadable(namespace, error)
        else:
            readable.append(namespace)
    return tuple(readable)


def _tell_unreadable(namespace: str, error: ApiError) -> None:
    _log.error("namespace %s cannot be read, so nothing in it is looked after: %s", namespace, error.message)


@dataclass
class Sweep:
    """The periodic look. `find_facts` asks what the cluster offers; a change concerns every resource.

    `unreadable` are the namespaces that could not be listed when last tried; those of the beginning are not watched.
    """

    client: KubeClient
    watched: Watched
    namespaces: tuple[str, ...]
    resync_seconds: float
    find_facts: Callable[[], Awaitable[ClusterFacts]]
    facts: ClusterFacts
    unreadable: frozenset[str] = frozenset()

    def current_facts(self) -> ClusterFacts:
        """What the cluster offered when last asked."""
        return self.facts

    async def run(self) -> None:
        """Sweep until cancelled, or until a namespace can be read that is not watched."""
        loop, unwatched = asyncio.get_running_loop(), self.unreadable
        resynced = loop.time()
        wait = period = min(SWEEP_SECONDS, self.resync_seconds)
        while unwatched <= self.unreadable:
            await asyncio.sleep(wait)
            try:
                is_due = loop.time() - resynced >= self.resync_seconds - period / 2
                if await self.look(add_all=is_due):
                    resynced = loop.time()
                wait = period
            except ApiError as error:
                # Nothing is known, so nothing is judged: without the API server no restart would help.
                _log.warning("cannot list the resources: %s", error.message)
                wait = min(period, _RETRY_SECONDS)
        _log.warning("ending, to watch what can be read now: %s", ", ".join(sorted(unwatched - self.unreadable)))

    async def look(self, *, add_all: bool) -> bool:
        """List once. Adds all keys, or those that the watch missed; returns whether it was all. Raises ApiError."""
        listed = await self._list()
        behind = self.watched.compare(listed, asyncio.get_running_loop().time())
        facts = await self.find_facts()
        if facts != self.facts:
            _log.info("the cluster offers something else now: %s", facts)
            self.facts, add_all = facts, True
        await self._add(listed if add_all else behind)
        return add_all

    async def _list(self) -> dict[Key, str]:
        listed, unreadable = {}, set()
        for namespace in self.namespaces or ("",):
            try:
                async for item in self.client.walk(RESOURCE, namespace):
                    metadata = item["metadata"]
                    listed[Key(metadata["namespace"], metadata["name"])] = metadata["resourceVersion"]
            except ApiError as error:
                if not namespace or not error.is_forbidden:
                    raise
                unreadable.add(namespace)
                if namespace not in self.unreadable:
                    _tell_unreadable(namespace, error)
        self.unreadable = frozenset(unreadable)
        return listed

    async def _add(self, keys: Collection[Key]) -> None:
        """One after the other: hundreds at once would keep waiting whoever edits a resource meanwhile."""
        pause = min(_PAUSE_SECONDS, SWEEP_SECONDS / 2 / max(len(keys), 1))
        for key in keys:
            self.watched.add(key, Urgency.CHANGED)
            await asyncio.sleep(pause)
