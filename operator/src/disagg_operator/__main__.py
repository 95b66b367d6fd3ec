"""`disagg-operator`: connects, waits to lead, then watches and works until told to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import kopf

from disagg_operator import handlers
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.connect import connect
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.facts import find_facts
from disagg_operator.kube.lease import Candidate, Election
from disagg_operator.metrics import Metrics
from disagg_operator.probes import serve_probes
from disagg_operator.reconcile import Key, Reconciler
from disagg_operator.settings import Settings, read_settings
from disagg_operator.sweep import Sweep, Watched, find_readable
from disagg_operator.workqueue import WorkQueue

# A queue in which keys wait and none is finished, or a watch that is behind, for so long is dead.
_STUCK_SECONDS: Final = 300.0
_BEHIND_SECONDS: Final = 150.0
_RETRY_SECONDS: Final = 2.0
_END_SECONDS: Final = 5.0
_log = logging.getLogger("disagg_operator")
T = TypeVar("T")


class Worker:
    """The part of the process that only a leader runs: queue, watch and sweep."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        metrics: Metrics,
        facts: ClusterFacts,
        readable: tuple[str, ...],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._readable = readable
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, on_wait=metrics.queue_latency.observe)
        self.watched = Watched(self.queue.add)
        ask = partial(find_facts, client, settings.cluster_domain, settings.namespace)
        self._sweep = Sweep(
            client,
            self.watched,
            settings.watch_namespaces,
            settings.resync_seconds,
            ask,
            facts,
            unreadable=frozenset(settings.watch_namespaces) - set(readable),
        )
        self._reconciler = Reconciler(client, settings.pins, self._sweep.current_facts, metrics)

    def find_fault(self) -> str:
        """Why this process should be restarted; empty when it works."""
        age = self.watched.age(asyncio.get_running_loop().time())
        self._metrics.queue_depth.set(self.queue.depth())
        self._metrics.failing.set(self.queue.failing())
        self._metrics.watch_age.set(age)
        if self.queue.idle_seconds() > _STUCK_SECONDS:
            return f"resources wait, and none was worked on for {self.queue.idle_seconds():.0f} s"
        if age > _BEHIND_SECONDS:
            return f"the watch has been behind for {age:.0f} s"
        return ""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, or one of the parts ends."""
        settings = self._settings
        await run_until_one_ends(
            stop.wait(),
            self.queue.run(settings.workers),
            self._watch(),
            self._sweep.run(),
        )

    async def _watch(self) -> None:
        if self._settings.watch_namespaces and not self._readable:
            # To kopf, no namespace means all of them.
            await asyncio.Event().wait()
        await handlers.watch(self.watched, self._sweep.facts, self._readable)

    async def _reconcile(self, key: Key) -> float | None:
        start = time.perf_counter()
        result = "error"
        try:
            again = await self._reconciler.reconcile(key)
            result = "done"
        finally:
            self._metrics.reconciles.labels(result).inc()
            self._metrics.duration.observe(time.perf_counter() - start)
        return again


class Operator:
    """The whole process. A standby serves its probes too."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._worker: Worker | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises when a part of it fails for good."""
        settings, metrics = self._settings, self._metrics
        async with (
            await connect(lambda verb, code: metrics.requests.labels(verb, str(code)).inc()) as client,
            serve_probes(settings.metrics_port, settings.health_port, metrics.registry, self._find_fault),
        ):
            if settings.leader_elect:
                await self._lead(client, stop)
            else:
                await self._work(client, stop)

    def _find_fault(self) -> str:
        return self._worker.find_fault() if self._worker is not None else ""

    async def _work(self, client: KubeClient, stop: asyncio.Event) -> None:
        settings = self._settings
        facts = await wait_for_answer(partial(find_facts, client, settings.cluster_domain, settings.namespace))
        readable = await wait_for_answer(partial(find_readable, client, settings.watch_namespaces))
        self._worker = Worker(client, settings, self._metrics, facts, readable)
        self._metrics.leader.set(1)
        await self._worker.run(stop)

    async def _lead(self, client: KubeClient, stop: asyncio.Event) -> None:
        candidate = Candidate(self._settings.identity, self._settings.namespace, self._settings.lease_name)
        election = Election(client, candidate)
        await run_until_one_ends(stop.wait(), election.acquire())
        if stop.is_set():
            return
        client.before_write = partial(end_unless_sure, election)
        holding = asyncio.create_task(election.hold())
        working = asyncio.create_task(self._work(client, stop))
        await asyncio.wait([holding, working], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            end_at_once()
        holding.cancel()
        await working
        with contextlib.suppress(ApiError):
            await election.release()


def end_unless_sure(election: Election) -> None:
    """End this process when another one may lead by now."""
    if not election.is_sure():
        end_at_once()


def end_at_once() -> NoReturn:
    """End this process: another one may lead, so whatever is under way must not go on, not even to clean up."""
    _log.critical("ending: this process leads no more")
    os._exit(1)


async def wait_for_answer(ask: Callable[[], Awaitable[T]]) -> T:
    """What is asked of the API server, as soon as it answers."""
    while True:
        try:
            return await ask()
        except ApiError as error:
            _log.warning("waiting for the API server: %s", error.message)
            await asyncio.sleep(_RETRY_SECONDS)


async def run_until_one_ends(*parts: Coroutine[Any, Any, Any]) -> None:
    """Run side by side until the first ends, end the others, and raise what the first raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_END_SECONDS)
    for task in done:
        task.result()


async def run(settings: Settings) -> None:
    """Run until a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Operator(settings).run(stop)


def configure_logging(settings: Settings) -> None:
    """One line an entry; kopf's own talk only when something is wrong, or everything is asked for."""
    log_format = kopf.LogFormat.JSON if settings.log_format == "json" else kopf.LogFormat.FULL
    is_debug = settings.log_level == "debug"
    kopf.configure(verbose=is_debug, log_format=log_format)
    logging.getLogger().setLevel(settings.log_level.upper())
    logging.getLogger("kopf").setLevel(logging.DEBUG if is_debug else logging.WARNING)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Ends with 0 after a signal; otherwise, when leadership is lost or a part fails."""
    settings = read_settings(argv)
    configure_logging(settings)
    # What is imported stays. Looking for garbage among it took a seventh of a busy operator's time.
    gc.freeze()
    asyncio.run(run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
