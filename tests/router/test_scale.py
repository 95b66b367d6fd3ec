"""Field cases C80, C85, C88: decode at zero and back, several routers, lost discovery; then the end of the router."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from router.client import ask, load, new_client, prompt_of
from router.fake_engine import Behaviour
from router.programs import eventually
from router.stack import Stack, get


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_client() as session:
        yield session


async def test_at_zero_the_router_stays_up_and_says_why(small: Stack, client: aiohttp.ClientSession) -> None:
    router = small.add_router()
    assert router.ready(), "no engine is no reason not to be ready"
    async with client.post(router.url + "/v1/completions", json={"prompt": "x"}) as reply:
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) > 0
        assert (await reply.json())["error"]["code"] == "no_decode_engine"
    async with client.get(router.url + "/v1/models") as reply:
        assert reply.status == 200
        assert [model["id"] for model in (await reply.json())["data"]] == ["smol"]
    assert router.metric("disagg_router_unserved_requests_total") == 1, "demand shows while nothing serves"


@pytest.mark.parametrize("last", [Behaviour(status=500), Behaviour(die_after=0)], ids=["error", "death"])
async def test_the_last_words_of_a_pod_that_leaves_are_no_answer(
    small: Stack, client: aiohttp.ClientSession, last: Behaviour
) -> None:
    """With no pod left but ones that end, Kubernetes sends what goes to their Service to these."""
    leaving = small.add_engine("decode", shown=False)
    leaving.behave(last)
    router = small.add_router(f"--direct-decode-url={leaving.url}", wait=False)
    eventually(router.ready, "the router is ready")
    async with client.post(router.url + "/v1/completions", json={"prompt": "x"}) as reply:
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) > 0
        assert (await reply.json())["error"]["code"] == "no_decode_engine"
    assert leaving.program is not None
    assert not leaving.program.running or leaving.seen(), "it was asked"
    assert router.metric("disagg_router_unserved_requests_total") == 1, "demand shows"


async def test_a_waiting_request_shows_and_is_answered_when_decode_comes(
    small: Stack, client: aiohttp.ClientSession
) -> None:
    router = small.add_router("--decode-wait=60")
    decode = small.add_engine("decode", shown=False)
    asking = asyncio.create_task(ask(client, router.url, prompt_of(10, streamed=False, number=1)))
    await asyncio.sleep(0)
    await asyncio.to_thread(eventually, lambda: router.metric("disagg_router_requests_waiting") == 1, "it waits")
    decode.show()
    assert await asking == ""
    assert router.metric("disagg_router_requests_waiting") == 0


def test_decode_to_zero_and_back_ten_times(small: Stack) -> None:
    """Scaling as a Deployment does it: the pod stops taking part, ends its requests, then goes."""
    small.add_engine("prefill")
    decodes = [small.add_engine("decode"), small.add_engine("decode")]
    router = small.add_router("--decode-wait=30")
    with load(router.url, size=2000, streamed=True, clients=3) as seen:
        for _ in range(10):
            seen.more(5)
            for engine in decodes:
                engine.hide()
            eventually(lambda: router.usable("decode") == 0, "decode is gone")
            for engine in decodes:
                engine.show()
            small.settle(router)
    assert seen.failures == []


def test_two_routers_agree_while_decode_comes_and_goes(small: Stack) -> None:
    """Also: a new pod gets traffic, and no router has to be started anew."""
    small.add_engine("prefill")
    first = small.add_engine("decode")
    routers = [small.add_router("--decode-wait=30"), small.add_router("--decode-wait=30")]
    with load(routers[0].url, size=500, streamed=False) as one, load(routers[1].url, size=500, streamed=True) as two:
        one.more(20)
        two.more(20)
        second = small.add_engine("decode")
        for router in routers:
            small.settle(router)
        one.more(20)
        two.more(20)
        assert second.seen(), "a new pod gets traffic"
        for engine in (first, second):
            engine.hide()
        for router in routers:
            eventually(lambda router=router: router.usable("decode") == 0, "decode is gone")  # type: ignore[misc]
        for engine in (first, second):
            engine.show()
        for router in routers:
            small.settle(router)
            assert router.listed("decode") == {first.url, second.url}
        one.more(250, 120)
        two.more(250, 120)
    assert one.failures == []
    assert two.failures == []


def test_new_prefill_pods_get_traffic(small: Stack) -> None:
    small.add_engine("decode")
    router = small.add_router()
    with load(router.url, size=500, streamed=False) as seen:
        seen.more(5)
        engines = [small.add_engine("prefill"), small.add_engine("prefill")]
        small.settle(router)
        seen.more(40)
        assert all(engine.seen() for engine in engines)
        engines[0].hide()
        eventually(lambda: router.usable("prefill") == 1, "one prefill is left")
        engines[0].behave()
        seen.more(20)
        assert engines[0].seen() == [], "what is no longer listed gets nothing"
    assert seen.failures == []


def test_requests_go_on_without_discovery(small: Stack) -> None:
    small.add_engine("prefill")
    small.add_engine("decode")
    router = small.add_router()
    with load(router.url, size=500, streamed=False) as seen:
        seen.more(5)
        router.discovery.end()
        eventually(lambda: router.metric("disagg_router_discovery_up") == 0, "the loss shows")
        seen.more(50)
        assert router.metric("disagg_router_prefill_legs_total", outcome="ok") >= 50
    assert seen.failures == []


def test_decodes_service_is_used_when_discovery_sees_nothing(small: Stack, tmp_path: Path) -> None:
    """vllm-router without rights to the API runs on with an empty list: decode's Service still answers."""
    decode = small.add_engine("decode", shown=False)
    nothing = tmp_path / "kubeconfig"
    nothing.write_text("{}")
    router = small.add_router(f"--direct-decode-url={decode.url}", kubeconfig=nothing, wait=False)
    eventually(router.ready, "the router is ready")
    with load(router.url, size=500, streamed=True) as seen:
        seen.more(20)
        eventually(lambda: router.metric("disagg_router_discovery_up") == 0, "the list is doubted")
    assert seen.failures == []


async def test_the_end_cuts_no_answer(small: Stack, client: aiohttp.ClientSession) -> None:
    """SIGTERM: not ready at once, late comers are still served for a moment, a long stream runs to its end."""
    small.add_engine("prefill")
    decode = small.add_engine("decode")
    router = small.add_router("--lame-duck-seconds=1.5")
    decode.behave(Behaviour(pace=0.2))
    async with client.post(router.url + "/v1/completions", json={"prompt": "x", "stream": True}) as reply:
        await reply.content.readany()
        router.front.send(signal.SIGTERM)
        await asyncio.to_thread(eventually, lambda: not router.ready(), "it is not ready")
        assert b"draining" in await _text(client, router.admin_url + "/ready")
        async with client.get(router.url + "/version") as late:
            assert late.status == 200
            assert late.headers["Connection"] == "close"
        data = await reply.read()
    assert data.endswith(b"data: [DONE]\n\n")
    assert await asyncio.to_thread(router.front.wait, 20) == 0


async def _text(client: aiohttp.ClientSession, url: str) -> bytes:
    async with client.get(url) as reply:
        return await reply.read()


async def test_the_grace_has_an_end(small: Stack, client: aiohttp.ClientSession) -> None:
    small.add_engine("prefill")
    decode = small.add_engine("decode")
    router = small.add_router("--lame-duck-seconds=0", "--drain-seconds=1")
    decode.behave(Behaviour(stuck=True))
    asking = asyncio.create_task(ask(client, router.url, prompt_of(1, streamed=False, number=1)))
    await asyncio.to_thread(eventually, lambda: len(decode.seen()) == 1, "it is at decode")
    router.front.send(signal.SIGTERM)
    assert await asyncio.to_thread(router.front.wait, 20) == 0
    assert await asking != ""


async def test_limits_refuse_with_a_word(small: Stack, client: aiohttp.ClientSession) -> None:
    decode = small.add_engine("decode")
    router = small.add_router("--max-in-flight=1", "--max-buffered-bytes=1Mi")
    decode.behave(Behaviour(stuck=True))
    first = asyncio.create_task(ask(client, router.url, prompt_of(1, streamed=False, number=1)))
    await asyncio.to_thread(eventually, lambda: len(decode.seen()) == 1, "it is at decode")
    async with client.get(router.url + "/version") as reply:
        assert reply.status == 503
        assert (await reply.json())["error"]["code"] == "overloaded"
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    decode.behave()
    async with client.post(router.url + "/v1/completions", data=b"x" * (2 << 20)) as reply:
        assert reply.status == 503
        assert reply.headers["Retry-After"]
    assert router.metric("disagg_router_refused_requests_total", reason="buffer_full") == 1


def test_metrics_name_what_they_count(small: Stack) -> None:
    router = small.add_router()
    text = get(router.admin_url + "/metrics").decode()
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP disagg_router_")}
    documented = (Path(__file__).parents[2] / "docs" / "router.md").read_text()
    assert helped
    assert [name for name in sorted(helped) if name not in documented] == []
