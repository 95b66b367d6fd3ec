"""`disagg-operator`: connects, waits to lead, then watches and works until told to stop."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence

import kopf
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from disagg_operator import handlers
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube import lease
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.connect import connect
from disagg_operator.kube.kinds import LEADER_WORKER_SET, POD_MONITOR
from disagg_operator.metrics import Metrics
from disagg_operator.reconcile import Key, Reconciler
from disagg_operator.settings import Settings, read_settings
from disagg_operator.workqueue import WorkQueue

_LEASE_NAME = "disaggregated-inference-operator"
# A queue that has keys and finishes none for so long is dead.
_STUCK_SECONDS = 300.0
_log = logging.getLogger("disagg_operator")


class Health:
    """Whether the process should live: its queue moves, or it waits to lead."""

    def __init__(self) -> None:
        self.queue: WorkQueue[Key] | None = None

    def is_alive(self) -> bool:
        """False when keys wait and none was finished for a long time."""
        if self.queue is None or self.queue.depth() == 0:
            return True
        return asyncio.get_running_loop().time() - self.queue.last_finished < _STUCK_SECONDS


async def find_facts(client: KubeClient, settings: Settings) -> ClusterFacts:
    """What the cluster offers, asked once at start."""
    return ClusterFacts(
        cluster_domain=settings.cluster_domain,
        operator_namespace=settings.namespace,
        ip_family="IPv6" if ":" in os.environ.get("KUBERNETES_SERVICE_HOST", "") else "IPv4",
        has_pod_monitor=await client.is_served(POD_MONITOR),
        has_leader_worker_set=await client.is_served(LEADER_WORKER_SET),
    )


@contextlib.asynccontextmanager
async def serving(settings: Settings, metrics: Metrics, health: Health) -> AsyncIterator[None]:
    """Metrics and health over HTTP while the block runs."""

    async def show_metrics(_: web.Request) -> web.Response:
        if health.queue is not None:
            metrics.queue_depth.set(health.queue.depth())
            metrics.failing.set(health.queue.failing())
        content_type, _sep, _rest = CONTENT_TYPE_LATEST.partition(";")
        return web.Response(body=generate_latest(metrics.registry), content_type=content_type)

    async def show_health(_: web.Request) -> web.Response:
        alive = health.is_alive()
        return web.Response(status=200 if alive else 503, text="ok\n" if alive else "the work queue is stuck\n")

    runners = []
    for port, path, show in (
        (settings.metrics_port, "/metrics", show_metrics),
        (settings.health_port, "/healthz", show_health),
    ):
        app = web.Application()
        app.router.add_get(path, show)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, None, port).start()
    try:
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


async def work(client: KubeClient, settings: Settings, metrics: Metrics, health: Health, stop: asyncio.Event) -> None:
    """Watch and reconcile until `stop` is set, or one of the two ends."""
    reconciler = Reconciler(client, settings, await find_facts(client, settings), metrics)

    async def reconcile(key: Key) -> float | None:
        start = time.perf_counter()
        try:
            again = await reconciler.reconcile(key)
        except BaseException:
            metrics.reconciles.labels("error").inc()
            raise
        finally:
            metrics.duration.observe(time.perf_counter() - start)
        metrics.reconciles.labels("done").inc()
        return again if again is None else min(again, settings.resync_seconds)

    queue: WorkQueue[Key] = WorkQueue(reconcile)
    health.queue = queue
    ready = asyncio.Event()
    tasks = [
        asyncio.create_task(queue.run(settings.workers), name="queue"),
        asyncio.create_task(handlers.watch(queue.add, settings.watch_namespaces, ready, stop), name="watch"),
        asyncio.create_task(stop.wait(), name="stop"),
    ]
    await run_until_one_ends(tasks, stop)


async def run_until_one_ends(tasks: list["asyncio.Task[None]"] | list[asyncio.Task], stop: asyncio.Event) -> None:  # type: ignore[type-arg]
    """Wait for the first to end, stop the others, and raise what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await asyncio.wait(tasks, timeout=5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None:
            raise error


async def lead_and_work(settings: Settings, stop: asyncio.Event) -> None:
    """Hold the Lease while working, when there is one to hold."""
    metrics, health = Metrics(), Health()
    async with await connect() as client, serving(settings, metrics, health):
        if not settings.leader_elect:
            metrics.leader.set(1)
            await work(client, settings, metrics, health, stop)
            return
        candidate = lease.Candidate(settings.identity, settings.namespace, _LEASE_NAME)
        waiting = asyncio.create_task(lease.acquire(client, candidate))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            waiting.cancel()
            return
        stopping.cancel()
        metrics.leader.set(1)
        holding = asyncio.create_task(lease.hold(client, candidate))
        working = asyncio.create_task(work(client, settings, metrics, health, stop))
        done, _ = await asyncio.wait([holding, working], return_when=asyncio.FIRST_COMPLETED)
        if holding in done and working not in done:
            # Another one may lead by now: whatever is under way here must not go on.
            _log.critical("ending: this process no longer leads")
            os._exit(1)
        holding.cancel()
        await working
        with contextlib.suppress(Exception):
            await lease.release(client, candidate)


async def run(settings: Settings) -> None:
    """Run until a signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await lead_and_work(settings, stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Ends with 0 after a signal, with 1 when leadership or the API server is lost for good."""
    settings = read_settings(argv)
    log_format = kopf.LogFormat.JSON if settings.log_format == "json" else kopf.LogFormat.FULL
    kopf.configure(verbose=settings.log_level == "debug", log_format=log_format)
    logging.getLogger().setLevel(settings.log_level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING if settings.log_level != "debug" else logging.DEBUG)
    asyncio.run(run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
