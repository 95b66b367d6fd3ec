"""What Kubernetes and Prometheus ask, on a port of its own: health, readiness, discovery, metrics."""

import time

from aiohttp import web
from prometheus_client import generate_latest

from disagg_router.breaker import State
from disagg_router.discovery import Discovery
from disagg_router.engines import Pool, Role
from disagg_router.front import Front
from disagg_router.metrics import Metrics


def build_admin(front: Front, discovery: Discovery, pool: Pool, metrics: Metrics) -> web.Application:
    """The admin application."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        problem = front.why_not_ready()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    async def discovered(_: web.Request) -> web.Response:
        suspect = discovery.is_suspect(time.monotonic())
        text = "discovery is silent, or lists no decode engine although decode's Service answers" if suspect else "ok"
        return web.Response(status=503 if suspect else 200, text=f"{text}\n")

    async def scrape(_: web.Request) -> web.Response:
        metrics.discovery_up.set(discovery.up)
        for role in Role:
            for state in State:
                metrics.engines.labels(role, state).set(pool.count(role, state))
        metrics.paired.set(sum(len(pool.listed(role)) for role in Role) - len(pool.unpaired()))
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/ready", ready)
    app.router.add_get("/discovery", discovered)
    app.router.add_get("/metrics", scrape)
    return app
