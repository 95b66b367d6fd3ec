"""Field case C76: tokens pass when they are made, to a hundred clients at once, in little memory."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from router.client import new_client
from router.fake_engine import Behaviour
from router.stack import Engine, Router, Stack

URL = "/v1/completions"
MIB = 1 << 20


@pytest.fixture(scope="module")
def decode(stack: Stack) -> Engine:
    stack.add_engine("prefill")
    return stack.add_engine("decode")


@pytest.fixture(scope="module")
def router(stack: Stack, decode: Engine) -> Router:
    return stack.add_router()


@pytest.fixture
async def client(decode: Engine) -> AsyncIterator[aiohttp.ClientSession]:
    decode.behave()
    async with new_client() as session:
        yield session


def body(tokens: int) -> dict[str, object]:
    return {"prompt": "x", "stream": True, "max_tokens": tokens}


async def count_tokens(reply: aiohttp.ClientResponse) -> int:
    """Events before the announced end; -1 when it was not announced."""
    data = await reply.read()
    return data.count(b'"text"') if data.endswith(b"data: [DONE]\n\n") else -1


async def test_a_token_passes_before_the_next_is_made(
    router: Router, decode: Engine, client: aiohttp.ClientSession
) -> None:
    """The engine makes one token and then stops for ever: the client has it all the same."""
    decode.behave(Behaviour(pace=3600))
    async with client.post(router.url + URL, json=body(5)) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        async with asyncio.timeout(10):
            event = await reply.content.readuntil(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["choices"][0]["text"]


async def test_a_hundred_streams_at_once(router: Router, decode: Engine, client: aiohttp.ClientSession) -> None:
    decode.behave(Behaviour(pace=0.02))

    async def one() -> int:
        async with client.post(router.url + URL, json=body(40)) as reply:
            return await count_tokens(reply)

    assert await asyncio.gather(*(one() for _ in range(100))) == [40] * 100
    assert router.metric("disagg_router_requests_in_flight") == 0


async def test_clients_that_do_not_read_stop_nobody_and_cost_little(
    router: Router, decode: Engine, client: aiohttp.ClientSession
) -> None:
    """Twenty clients leave 10 MB each unread. Others are answered, and the router does not hold the rest for them."""
    decode.behave(Behaviour(pad=20_000))
    async with contextlib.AsyncExitStack() as open_replies:
        before = router.front.resident_bytes()
        for _ in range(20):
            # The client library would read ahead without end but for its own limit.
            await open_replies.enter_async_context(client.post(router.url + URL, json=body(500), read_bufsize=1024))
        async with asyncio.timeout(60):
            for _ in range(5):
                async with client.post(router.url + URL, json=body(500)) as reply:
                    assert await count_tokens(reply) == 500
        grown = router.front.resident_bytes() - before
        assert grown < 100 * MIB, f"{grown / MIB:.0f} MiB held for clients that do not read"


async def test_memory_stays_flat_over_long_streams(
    router: Router, decode: Engine, client: aiohttp.ClientSession
) -> None:
    async def one() -> None:
        async with client.post(router.url + URL, json=body(500)) as reply:
            async for _ in reply.content.iter_any():
                pass

    decode.behave(Behaviour(pad=20_000))
    await one()
    before = router.front.resident_bytes()
    for _ in range(10):
        await one()
    assert router.front.resident_bytes() - before < 20 * MIB
