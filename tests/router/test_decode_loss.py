"""Field case C71: decode dies. Before the first token another one answers; in mid-stream the client is told."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import pytest

from router.client import ask, load, new_client, prompt_of
from router.fake_engine import Behaviour
from router.programs import eventually
from router.stack import Engine, Router, Stack

URL = "/v1/completions"


@pytest.fixture(scope="module")
def prefill(stack: Stack) -> Engine:
    return stack.add_engine("prefill")


@pytest.fixture(scope="module")
def pair(stack: Stack) -> list[Engine]:
    return [stack.add_engine("decode"), stack.add_engine("decode")]


@pytest.fixture(scope="module")
def router(stack: Stack, prefill: Engine, pair: list[Engine]) -> Router:
    return stack.add_router("--decode-check-failures=2")


@pytest.fixture
def decodes(stack: Stack, router: Router, pair: list[Engine]) -> Iterator[list[Engine]]:
    yield pair
    for engine in pair:
        assert engine.program is not None
        if not engine.program.running:
            engine.start()
        engine.behave()
    # An engine that failed requests is on trial until it has answered one.
    with load(router.url, size=10, streamed=False):
        stack.settle(router)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_client() as session:
        yield session


def until(condition: Callable[[], bool], what: str) -> Iterator[int]:
    """Numbers of prompts, until the condition holds. The front draws lots among engines that are equally free.

    Raises AssertionError that names `what` did not come about with 100 prompts.
    """
    for number in range(100):
        yield number
        if condition():
            return
    raise AssertionError(f"not with 100 prompts: {what}")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_killed_before_the_first_token(
    router: Router, decodes: list[Engine], client: aiohttp.ClientSession, streamed: bool
) -> None:
    """One of two dies of the request; whichever is asked first, the client gets its answer."""
    decodes[0].behave(Behaviour(die_after=0))
    program = decodes[0].program
    assert program is not None
    for number in until(lambda: not program.running, "the engine was asked and died"):
        assert await ask(client, router.url, prompt_of(2000, streamed=streamed, number=number)) == ""


async def test_a_stream_that_ends_before_its_first_event_is_mended(
    router: Router, decodes: list[Engine], client: aiohttp.ClientSession
) -> None:
    decodes[0].behave(Behaviour(end_after=0))
    for number in until(lambda: bool(decodes[0].seen()), "the engine was asked"):
        assert await ask(client, router.url, prompt_of(10, streamed=True, number=number)) == ""


async def test_what_kills_engines_is_not_handed_round(
    router: Router, decodes: list[Engine], client: aiohttp.ClientSession
) -> None:
    for engine in decodes:
        engine.behave(Behaviour(die_after=0))
    async with client.post(router.url + URL, json={"prompt": "x"}) as reply:
        assert reply.status == 502
        assert (await reply.json())["error"]["code"] == "engine_failed"
        assert reply.headers["Retry-After"]


@pytest.mark.parametrize("end", ["killed", "ended-early"])
async def test_killed_in_mid_stream(
    router: Router, decodes: list[Engine], client: aiohttp.ClientSession, end: str
) -> None:
    for engine in decodes:
        engine.behave(Behaviour(pace=0.02, die_after=5) if end == "killed" else Behaviour(pace=0.02, end_after=5))
    async with client.post(router.url + URL, json={"prompt": "x", "stream": True}) as reply:
        assert reply.status == 200
        data = await reply.read()
    events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n") if event]
    assert b"[DONE]" not in data
    assert len(events) == 6, "what was made before the end arrives, in whole events"
    assert json.loads(events[-1])["error"]["code"] == "engine_failed"
    assert router.metric("disagg_router_broken_streams_total") >= 1


async def test_hung_in_mid_stream(router: Router, decodes: list[Engine], client: aiohttp.ClientSession) -> None:
    for engine in decodes:
        engine.behave(Behaviour(pace=0.1))
    async with client.post(router.url + URL, json={"prompt": "x", "stream": True}) as reply:
        await reply.content.readany()
        for engine in decodes:
            engine.send(signal.SIGSTOP)
        try:
            data = await reply.content.read()
        finally:
            for engine in decodes:
                engine.send(signal.SIGCONT)
    assert b"engine_failed" in data
    assert b"[DONE]" not in data


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_no_request_fails_while_one_of_two_is_hung(
    stack: Stack, router: Router, decodes: list[Engine], streamed: bool
) -> None:
    with load(router.url, size=2000, streamed=streamed) as seen:
        seen.more(10)
        decodes[1].send(signal.SIGSTOP)
        try:
            eventually(lambda: router.usable("decode") == 1, "the hung one is left alone")
            seen.more(30)
        finally:
            decodes[1].send(signal.SIGCONT)
        stack.settle(router)
        seen.more(20)
    assert seen.failures == []


@pytest.mark.parametrize("size", [2 << 10, 1 << 20], ids=["2KB", "1MB"])
def test_no_request_fails_while_one_of_two_is_killed(
    stack: Stack, router: Router, decodes: list[Engine], size: int
) -> None:
    with load(router.url, size=size, streamed=False) as seen:
        seen.more(10)
        decodes[1].end()
        seen.more(30)
        decodes[1].start()
        stack.settle(router)
        seen.more(20)
    assert seen.failures == []


async def test_a_lone_decode_that_restarts_in_time_loses_nothing(
    router: Router, decodes: list[Engine], client: aiohttp.ClientSession
) -> None:
    """A request that reached nobody waits a moment for somebody."""
    for engine in decodes:
        engine.end()
    asking = asyncio.create_task(ask(client, router.url, prompt_of(10, streamed=False, number=1)))
    await asyncio.sleep(0.3)
    decodes[0].start()
    assert await asking == ""
