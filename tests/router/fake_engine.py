"""A stand-in for an engine, for tests of timing and faults only. OpenAI-shaped, strict like vLLM, fails on command.

The text it answers begins with a digest of the prompt it got, so that a client can tell that its own prompt was
answered. Real engines are exercised end to end elsewhere.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
from collections import deque
from dataclasses import dataclass, field

from aiohttp import web

Body = dict[str, object]


@dataclass
class Behaviour:
    """What the next requests meet.

    `die_after` kills the process once so many events of a stream were sent, `end_after` ends the stream there, `pad`
    makes each event larger by so many bytes. With `serial` requests are worked on one after the other.
    """

    delay: float = 0.0
    serial: bool = False
    pace: float = 0.0
    status: int = 0
    malformed: bool = False
    stuck: bool = False
    die_after: int = -1
    end_after: int = -1
    params: bool = True
    pad: int = 0


@dataclass
class Fake:
    """One stand-in engine."""

    name: str
    behaviour: Behaviour = field(default_factory=Behaviour)
    seen: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=400))
    cancelled: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        raw = await request.read()
        self.seen.append(
            {
                "method": request.method,
                "path": request.path_qs,
                "headers": {key.lower(): value for key, value in request.headers.items()},
                "body": raw.decode("latin-1") if len(raw) < 100_000 else "",
                "size": len(raw),
            }
        )
        try:
            return await self._answer(request, raw)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _answer(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        do = self.behaviour
        if do.stuck:
            await asyncio.sleep(3600)
        async with self.turn if do.serial else contextlib.nullcontext():
            await asyncio.sleep(do.delay)
        if do.status:
            return error(do.status, "told to fail")
        if do.malformed:
            return web.Response(text="<html>", content_type="text/html")
        if request.path in {"/v1/completions", "/v1/chat/completions"} and request.method == "POST":
            return await self._generate(request, raw)
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "smol", "object": "model"}]})
        if request.path == "/not-found":
            return error(404, "Not Found")
        return web.json_response({"engine": self.name, "path": request.path_qs, "body": raw.decode("latin-1")})

    async def _generate(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        try:
            body: Body = json.loads(raw)
        except ValueError:
            return error(400, "Request body is no JSON")
        chat = request.path == "/v1/chat/completions"
        if problem := refuse(body, chat):
            return error(400, problem)
        if body.get("stream"):
            return await self._stream(request, body, chat)
        answer = whole_answer(body, chat)
        if self.behaviour.die_after >= 0:
            die()
        if self.behaviour.params:
            answer["kv_transfer_params"] = {"engine": self.name, "last": digest(body, chat)}
        return web.json_response(answer, headers={"X-Request-Id": request.headers.get("X-Request-Id", "made-here")})

    async def _stream(self, request: web.Request, body: Body, chat: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number, event in enumerate(stream_events(body, chat)):
            if number == self.behaviour.die_after:
                die()
            if number == self.behaviour.end_after:
                return response
            padding = b" " * self.behaviour.pad
            await response.write(b"data: " + json.dumps(event).encode() + padding + b"\n\n")
            await asyncio.sleep(self.behaviour.pace)
        await response.write(b"data: [DONE]\n\n")
        return response


def refuse(body: Body, chat: bool) -> str:
    """What vLLM refuses, as far as these tests go there."""
    most = limit(body, chat)
    least = body.get("min_tokens") or 0
    if body.get("stream_options") and not body.get("stream"):
        return "Stream options can only be defined when `stream=True`."
    if isinstance(least, int) and least > most:
        return f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
    if chat and body.get("top_logprobs") is not None and not body.get("logprobs"):
        return "when using `top_logprobs`, `logprobs` must be set to true."
    if ("messages" if chat else "prompt") not in body:
        return "the prompt is missing"
    return ""


def limit(body: Body, chat: bool) -> int:
    names = ["max_completion_tokens", "max_tokens"] if chat else ["max_tokens"]
    for name in names:
        value = body.get(name)
        if isinstance(value, int):
            return value
    return 16


def digest(body: Body, chat: bool) -> str:
    prompt = body["messages" if chat else "prompt"]
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16]


def words(body: Body, chat: bool) -> list[str]:
    return [digest(body, chat), *(f" t{n}" for n in range(1, limit(body, chat)))]


def answers(body: Body) -> int:
    count = body.get("n") or 1
    return count if isinstance(count, int) else 1


def usage(body: Body, chat: bool) -> Body:
    return {"prompt_tokens": 7, "completion_tokens": answers(body) * limit(body, chat)}


def whole_answer(body: Body, chat: bool) -> Body:
    text = "".join(words(body, chat))
    choices = [
        {"index": n, "finish_reason": "length"}
        | ({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        for n in range(answers(body))
    ]
    kind = "chat.completion" if chat else "text_completion"
    return {"id": "cmpl-1", "object": kind, "choices": choices, "usage": usage(body, chat)}


def stream_events(body: Body, chat: bool) -> list[Body]:
    kind = "chat.completion.chunk" if chat else "text_completion"
    events: list[Body] = []
    for word in words(body, chat):
        for index in range(answers(body)):
            choice: Body = {"index": index} | ({"delta": {"content": word}} if chat else {"text": word})
            events.append({"id": "cmpl-1", "object": kind, "choices": [choice]})
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        events.append({"id": "cmpl-1", "object": kind, "choices": [], "usage": usage(body, chat)})
    return events


def error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "BadRequestError", "code": status}}, status=status)


def die() -> None:
    """Ends as a crash does: nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


async def serve(name: str, host: str, port: int, control_port: int) -> None:
    fake = Fake(name)

    async def seen(_: web.Request) -> web.Response:
        return web.json_response({"seen": list(fake.seen), "cancelled": fake.cancelled})

    async def behave(request: web.Request) -> web.Response:
        fake.behaviour = Behaviour(**await request.json())
        fake.seen.clear()
        fake.cancelled = 0
        return web.Response()

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{tail:.*}", fake.handle)
    control = web.Application()
    control.router.add_get("/", seen)
    control.router.add_post("/", behave)
    for application, at in ((app, port), (control, control_port)):
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, host, at, reuse_address=True, backlog=1024).start()
    print("up", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("control_port", type=int)
    args = parser.parse_args()
    asyncio.run(serve(args.name, args.host, args.port, args.control_port))
