"""Starts the router's front, and ends it without cutting an answer."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import prometheus_client
from aiohttp import web

from disagg_router.admin import build_admin
from disagg_router.breaker import Breaker
from disagg_router.discovery import Discovery
from disagg_router.engines import Pool
from disagg_router.front import Front
from disagg_router.intake import Intake
from disagg_router.keys import Keyring
from disagg_router.metrics import Metrics
from disagg_router.monitor import Monitor
from disagg_router.prefill import PrefillLeg
from disagg_router.relay import Relay
from disagg_router.revisions import Revisions
from disagg_router.settings import Settings, parse_settings
from disagg_router.upstream import new_session

log = logging.getLogger("disagg_router")


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[web.TCPSite]:
    """An application that is served while the block runs. A client that leaves cancels its handler."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        yield site
    finally:
        await runner.cleanup()


@asynccontextmanager
async def background(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Work that goes on beside the block. If one of it fails, so does the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def run(settings: Settings, stop: asyncio.Event) -> None:
    """Serves until `stop`, then lets requests in flight end."""
    metrics = Metrics()

    def new_breaker() -> Breaker:
        return Breaker(
            threshold=settings.breaker_failures,
            cooldown=settings.breaker_cooldown,
            max_cooldown=settings.breaker_max_cooldown,
        )

    pool = Pool(new_breaker, last_resort=settings.direct_decode_url)
    keyring = Keyring(settings.api_key_file)
    await keyring.reload()
    async with new_session(settings.connect_timeout) as session:
        discovery = Discovery(session, settings.discovery_url, pool)
        relay = Relay(session, pool, metrics, settings)
        front = Front(
            settings=settings,
            pool=pool,
            discovery=discovery,
            keyring=keyring,
            intake=Intake(metrics, settings),
            prefill=PrefillLeg(session, pool, metrics, settings),
            relay=relay,
            metrics=metrics,
        )
        admin = build_admin(front, discovery, pool, metrics)
        async with (
            background(
                discovery.run(settings.discovery_interval),
                Monitor(session, pool, discovery, metrics, settings).run(),
                Revisions(session, pool, settings).run(),
                keyring.watch(settings.api_key_reload_seconds),
            ),
            serving(admin, settings.admin_host, settings.admin_port),
            serving(front.app(), settings.listen_host, settings.listen_port) as site,
        ):
            log.info("serving on %s:%d", settings.listen_host, settings.listen_port)
            await stop.wait()
            await drain(front, relay, site, settings)


async def drain(front: Front, relay: Relay, site: web.TCPSite, settings: Settings) -> None:
    """Not ready at once; takes late comers for a moment, then none; waits for those in flight."""
    front.draining = relay.closing = True
    log.info("draining: %d requests in flight", front.in_flight)
    await asyncio.sleep(settings.lame_duck_seconds)
    await site.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.drain_seconds):
            await front.idle.wait()
    if front.in_flight:
        log.warning("ending with %d requests in flight: the time for draining is up", front.in_flight)


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(settings, stop)


def main() -> None:
    """The program `disagg-router`."""
    settings = parse_settings()
    # A second sample of each counter that nobody reads. The function has no types.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(settings))


if __name__ == "__main__":
    main()
