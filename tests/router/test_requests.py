"""Field case C70: what reaches the engines and the client, field by field. Then keys, limits, errors and headers."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from router.client import new_client
from router.fake_engine import Behaviour
from router.programs import eventually
from router.stack import Engine, Router, Stack

Body = dict[str, object]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@pytest.fixture(scope="module")
def prefill(stack: Stack) -> Engine:
    return stack.add_engine("prefill")


@pytest.fixture(scope="module")
def decode(stack: Stack) -> Engine:
    return stack.add_engine("decode")


@pytest.fixture(scope="module")
def router(stack: Stack, prefill: Engine, decode: Engine) -> Router:
    return stack.add_router("--max-body-size=4Mi")


@pytest.fixture
async def client(prefill: Engine, decode: Engine) -> AsyncIterator[aiohttp.ClientSession]:
    prefill.behave()
    decode.behave()
    async with new_client() as session:
        yield session


async def post(
    client: aiohttp.ClientSession, url: str, raw: bytes, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    sent = {"Content-Type": "application/json", **headers}
    async with client.post(url, data=raw, headers=sent) as reply:
        return reply.status, await reply.read(), {key.lower(): value for key, value in reply.headers.items()}


def only(engine: Engine) -> dict[str, object]:
    """The one request that an engine saw."""
    seen = engine.seen()
    assert len(seen) == 1
    return seen[0]


def body_of(request: dict[str, object]) -> bytes:
    body = request["body"]
    assert isinstance(body, str)
    return body.encode("latin-1")


FIELDS: list[tuple[str, Body]] = [
    (CHAT, {"max_tokens": 5}),
    (CHAT, {"max_completion_tokens": 5}),
    (CHAT, {"max_completion_tokens": 5, "max_tokens": 9}),
    (CHAT, {"max_tokens": 5, "min_tokens": 4}),
    (CHAT, {"n": 2, "max_tokens": 3}),
    (CHAT, {"logprobs": True, "top_logprobs": 2}),
    (CHAT, {"stop": ["\n", "é"], "tools": TOOLS, "tool_choice": "auto"}),
    (CHAT, {"response_format": SCHEMA, "seed": 2**63 + 1, "logit_bias": {"5": -100}}),
    (CHAT, {"tools": [{"type": "custom", "name": "no function"}], "chat_template_kwargs": {"thinking": False}}),
    (COMPLETIONS, {"max_tokens": 5, "min_tokens": 5}),
    (COMPLETIONS, {"n": 2, "best_of": 2, "max_tokens": 2}),
    (COMPLETIONS, {"logprobs": 3, "stop": "x", "unknown_field": {"a": [1, None]}, "suffix": None}),
    (COMPLETIONS, {"prompt": [1, 2, 3], "return_token_ids": True}),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "fields"), FIELDS, ids=str)
async def test_fields_arrive_unharmed_and_prefill_gets_its_own(
    router: Router,
    prefill: Engine,
    decode: Engine,
    client: aiohttp.ClientSession,
    path: str,
    fields: Body,
    streamed: bool,
) -> None:
    text: Body = {"messages": [{"role": "user", "content": "hé", "name": "a"}]} if path == CHAT else {"prompt": "hé"}
    body: Body = {"model": "smol", **text, **fields, "stream": streamed}
    if streamed:
        body["stream_options"] = {"include_usage": True}
    raw = json.dumps(body, indent=1, ensure_ascii=False).encode()
    status, answer, _ = await post(client, router.url + path, raw)
    assert status == 200, answer

    first, second = only(prefill), only(decode)
    one = json.loads(body_of(first))
    assert (first["path"], one["max_tokens"], one["n"], one["stream"]) == (path, 1, 1, False)
    assert one.get("max_completion_tokens", 1) == 1
    assert not one.keys() & {"stream_options", "min_tokens", "best_of", "logprobs", "top_logprobs", "return_token_ids"}
    for key in body.keys() & {"messages", "prompt", "model", "tools", "tool_choice", "response_format", "seed", "stop"}:
        assert one[key] == body[key]

    assert second["path"] == path
    head, _, params = body_of(second).rpartition(b',"kv_transfer_params":')
    assert head + b"}" == raw, "the client's bytes were changed"
    assert json.loads(params[:-1])["engine"] == prefill.name

    # The answer is decode's own, byte by byte: the same request straight to it gives the same.
    _, alone, _ = await post(client, decode.url + path, raw)
    assert shape(answer) == shape(alone)


def shape(answer: bytes) -> bytes:
    """An answer without what differs from run to run: the stand-in tells decode's params with its own digest."""
    return re.sub(rb'"kv_transfer_params": \{[^}]*\}', b"", answer)


async def test_a_request_that_prefill_refuses_gets_decodes_error(
    router: Router, prefill: Engine, client: aiohttp.ClientSession
) -> None:
    for raw in (
        b'{"model": "smol", "max_tokens": 1, "min_tokens": 2, "prompt": "x"}',
        b'{"model"',
        b'{"model": "smol"}',
    ):
        status, answer, _ = await post(client, router.url + COMPLETIONS, raw)
        assert status == 400
        assert json.loads(answer)["error"]["message"]
    assert router.usable("prefill") == 1, "a bad request is no fault of the engine"


async def test_a_clients_kv_transfer_params_reach_no_engine(
    router: Router, prefill: Engine, decode: Engine, client: aiohttp.ClientSession
) -> None:
    raw = b'{"prompt": "x", "kv_transfer_params": {"remote_host": "10.9.9.9"}}'
    assert (await post(client, router.url + COMPLETIONS, raw))[0] == 200
    for engine in (prefill, decode):
        assert b"10.9.9.9" not in body_of(only(engine))


async def test_prompts_in_any_spelling_of_the_path_take_both_legs(
    router: Router, prefill: Engine, decode: Engine, client: aiohttp.ClientSession
) -> None:
    from yarl import URL

    url = URL(router.url + "/v1/completion%73?trace=1", encoded=True)
    async with client.post(url, json={"prompt": "x"}) as reply:
        assert reply.status == 200
    assert only(prefill)["path"] == only(decode)["path"] == "/v1/completions?trace=1"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("POST", "/tokenize"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/audio/transcriptions"),
        ("GET", "/version"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("DELETE", "/v1/responses/r%2F1?a=%20b"),
    ],
)
async def test_all_else_goes_straight_to_decode(
    router: Router, prefill: Engine, decode: Engine, client: aiohttp.ClientSession, method: str, path: str
) -> None:
    from yarl import URL

    raw = b"--x\r\nnot json\x00\xff" if method == "POST" else None
    async with client.request(method, URL(router.url + path, encoded=True), data=raw) as reply:
        assert reply.status == 200
    request = only(decode)
    assert (request["method"], request["path"]) == (method, path)
    assert body_of(request) == (raw or b"")
    assert prefill.seen() == []


async def test_headers_pass_but_those_of_the_connection(
    router: Router, prefill: Engine, decode: Engine, client: aiohttp.ClientSession
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = {"traceparent": trace, "X-Request-Id": "r1", "X-Data-Parallel-Rank": "0", "Accept": "a/b", "TE": "trailers"}
    _, _, received = await post(client, router.url + COMPLETIONS, b'{"prompt": "x"}', **sent)
    for engine in (prefill, decode):
        headers = only(engine)["headers"]
        assert isinstance(headers, dict)
        assert (headers["traceparent"], headers["x-request-id"], headers["x-data-parallel-rank"]) == (trace, "r1", "0")
        assert "te" not in headers
    assert received["x-request-id"] == "r1", "the engine's own id is kept"


async def test_a_packed_body_arrives_unpacked(
    router: Router, prefill: Engine, decode: Engine, client: aiohttp.ClientSession
) -> None:
    packed = gzip.compress(b'{"prompt": "x"}')
    status, _, _ = await post(client, router.url + COMPLETIONS, packed, **{"Content-Encoding": "gzip"})
    assert status == 200
    assert json.loads(body_of(only(prefill)))["prompt"] == "x"
    assert body_of(only(decode)).startswith(b'{"prompt": "x"')
    bomb = gzip.compress(b"x" * (64 << 20))
    status, _, _ = await post(client, router.url + COMPLETIONS, bomb, **{"Content-Encoding": "gzip"})
    assert status == 413, "what counts is the size after unpacking"


async def test_bodies_up_to_the_limit_and_not_beyond(
    router: Router, decode: Engine, client: aiohttp.ClientSession
) -> None:
    most = 4 << 20
    for size, expected in ((most, 200), (most + 1, 413)):
        head = b'{"prompt": "'
        raw = head + b"x" * (size - len(head) - 2) + b'"}'
        status, answer, _ = await post(client, router.url + COMPLETIONS, raw)
        assert status == expected
    assert json.loads(answer)["error"]["code"] == "request_too_large"
    received = only(decode)["size"]
    assert isinstance(received, int)
    assert received > most, "the largest body went through both legs"

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * (1 << 20)

    async with client.post(router.url + COMPLETIONS, data=chunks()) as reply:
        assert reply.status == 413, "a body of unknown length is measured as it comes"
    assert router.metric("disagg_router_buffered_bytes") == 0, "bytes stay counted"


async def test_engine_errors_pass_as_they_are(router: Router, client: aiohttp.ClientSession) -> None:
    async with client.get(router.url + "/not-found") as reply:
        assert reply.status == 404
        assert (await reply.json())["error"]["message"] == "Not Found"


async def test_a_failing_decode_shows_its_own_error(
    router: Router, decode: Engine, client: aiohttp.ClientSession
) -> None:
    decode.behave(Behaviour(status=500))
    status, answer, _ = await post(client, router.url + COMPLETIONS, b'{"prompt": "x"}')
    assert (status, json.loads(answer)["error"]["message"]) == (500, "told to fail")


async def test_a_method_that_is_not_served(router: Router, client: aiohttp.ClientSession) -> None:
    async with client.request("TRACE", router.url + "/v1/models") as reply:
        assert reply.status == 405
        assert (await reply.json())["error"]["code"] == "method_not_allowed"


def gave_up(engine: Engine) -> bool:
    return engine.cancelled() == 1


async def test_a_client_that_leaves_ends_the_work(
    router: Router, prefill: Engine, decode: Engine, client: aiohttp.ClientSession
) -> None:
    for engine in (prefill, decode):
        engine.behave(Behaviour(stuck=True))
        with pytest.raises(TimeoutError):
            await client.post(router.url + COMPLETIONS, json={"prompt": "x"}, timeout=aiohttp.ClientTimeout(total=0.3))
        await asyncio.to_thread(eventually, partial(gave_up, engine), f"{engine.name} is told to stop")
        engine.behave()
    assert router.metric("disagg_router_requests_in_flight") == 0, "something stays in flight"


async def test_api_keys_from_a_secret_that_rotates(
    stack: Stack, decode: Engine, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("sk-one\nsk-two\n")
    router = stack.add_router(f"--api-key-file={tmp_path}", "--log-level=debug")

    async def status(key: str, path: str = COMPLETIONS) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return (await post(client, router.url + path, b'{"prompt": "x"}', **headers))[0]

    assert [await status(key) for key in ("sk-one", "sk-two", "sk-onE", "", "sk-one sk-two")] == [
        200,
        200,
        401,
        401,
        401,
    ]
    assert await status("", "/v1/embeddings") == 401
    for request in decode.seen():
        headers = request["headers"]
        assert isinstance(headers, dict)
        assert "authorization" not in headers, "a key for the router is not for engines"
    _, answer, _ = await post(client, router.url + COMPLETIONS, b"{}")
    assert json.loads(answer)["error"]["code"] == "invalid_api_key"
    async with client.get(router.url + "/health") as reply:
        assert reply.status == 200, "health is no secret"

    (tmp_path / "keys").write_text("sk-three\n")
    eventually(lambda: "API keys read: 1" in router.front.log.read_text(), "the new keys are read")
    assert [await status(key) for key in ("sk-three", "sk-one")] == [200, 401]
    assert "sk-" not in router.front.log.read_text(), "a key is in the log"
    assert router.front.running


async def test_without_keys_of_its_own_the_header_passes(
    router: Router, decode: Engine, client: aiohttp.ClientSession
) -> None:
    await post(client, router.url + COMPLETIONS, b'{"prompt": "x"}', Authorization="Bearer for-the-engine")
    headers = only(decode)["headers"]
    assert isinstance(headers, dict)
    assert headers["authorization"] == "Bearer for-the-engine"
