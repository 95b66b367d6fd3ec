"""What a master's page says: the text is what a real mooncake_master 0.3.13 answers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from disagg_operator.kube import master
from disagg_operator.kube.master import list_segments

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def ask(handler: Handler) -> tuple[str, ...] | None:
    app = web.Application()
    app.router.add_get("/get_all_segments", handler)
    async with TestServer(app) as server:
        return await list_segments(str(server.make_url("/")).rstrip("/"))


async def test_segments_are_lines() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="10.244.0.7:13520\n10.244.0.9:15650\n")

    assert await ask(handler) == ("10.244.0.7:13520", "10.244.0.9:15650")


async def test_none_registered_is_not_the_same_as_not_known() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="")

    assert await ask(handler) == ()


async def test_an_error_page_is_not_known() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=503, text="10.0.0.1:1\n")

    assert await ask(handler) is None


async def test_a_master_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "_TIMEOUT_SECONDS", 0.05)

    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    assert await ask(handler) is None


async def test_nobody_there_is_not_known() -> None:
    assert await list_segments("http://127.0.0.1:1") is None
    assert await list_segments("http://no-such-master.test.svc:9003") is None
