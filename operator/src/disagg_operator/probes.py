"""Serves metrics and health over HTTP, for Prometheus and the kubelet."""

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


@contextlib.asynccontextmanager
async def serve_probes(
    metrics_port: int, health_port: int, registry: CollectorRegistry, find_fault: Callable[[], str]
) -> AsyncIterator[None]:
    """`/metrics` and `/healthz` while the block runs. `find_fault` tells why the process should end, "" if it lives.

    It is called before metrics are shown too, and may bring gauges up to date. Port 0 leaves a page out. Raises
    OSError when a port is taken.
    """

    async def show_metrics(_: web.Request) -> web.Response:
        find_fault()
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_health(_: web.Request) -> web.Response:
        fault = find_fault()
        return web.Response(status=503 if fault else 200, text=f"{fault or 'ok'}\n")

    async with contextlib.AsyncExitStack() as stack:
        for port, path, show in ((metrics_port, "/metrics", show_metrics), (health_port, "/healthz", show_health)):
            if port == 0:
                continue
            app = web.Application()
            app.router.add_get(path, show)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, None, port).start()
        yield
