"""A proxy between an operator and its API server, which loses events when it is told to.

It speaks plain HTTP to the operator and the operator's own certificate to the server, so rights and audit log stay
the operator's. It runs in a thread with a loop of its own.
"""

import asyncio
import base64
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from router.programs import free_port

_HOP = {"transfer-encoding", "content-length", "content-encoding", "connection", "keep-alive"}


@dataclass
class Faults:
    """What goes wrong, and what is seen. Asked in the proxy's thread."""

    swallows: Callable[[str, bytes], bool] = lambda path, line: False
    """Whether a line of the watch at a path is not passed on."""

    sees: Callable[[str, str], None] = lambda method, path: None
    """Told of each request, its query included, before it is passed on."""


class _Proxy:
    def __init__(self, server: str, context: ssl.SSLContext, faults: Faults) -> None:
        self._server, self._context, self._faults = server, context, faults

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in {*_HOP, "host"}}
        headers["Accept-Encoding"] = "identity"
        self._faults.sees(request.method, request.raw_path)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.request(
                request.method,
                self._server + request.raw_path,
                headers=headers,
                # Not even an empty body where there was none: it would bring a content type of its own.
                data=await request.read() or None,
                ssl=self._context,
            ) as answer,
        ):
            reply = web.StreamResponse(
                status=answer.status,
                headers={key: value for key, value in answer.headers.items() if key.lower() not in _HOP},
            )
            await reply.prepare(request)
            await self._pass_on(answer, reply, request.path if "watch" in request.query else "")
            return reply

    async def _pass_on(self, answer: aiohttp.ClientResponse, reply: web.StreamResponse, watched: str) -> None:
        if not watched:
            async for chunk in answer.content.iter_any():
                await reply.write(chunk)
            return
        rest = b""
        async for chunk in answer.content.iter_any():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if not self._faults.swallows(watched, line):
                    await reply.write(line + b"\n")


@contextmanager
def fault_proxy(kubeconfig: Path, faults: Faults) -> Iterator[Path]:
    """A kubeconfig that leads through a proxy, for as long as the block runs."""
    config = yaml.safe_load(kubeconfig.read_text())
    port, ready = free_port(), threading.Event()
    proxy = _Proxy(config["clusters"][0]["cluster"]["server"], _context(config), faults)
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        ends.append(partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set))
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        ready.set()
        await stop.wait()
        await runner.cleanup()

    # asyncio.run cancels what is left: watches end when their client does, and that may be later.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10), "the proxy did not start"
    through = kubeconfig.with_suffix(f".{port}.proxied")
    cluster = {"name": "proxied", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "proxied", "context": {"cluster": "proxied", "user": "proxied"}}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "proxied", "user": {}}],
        "contexts": [context],
        "current-context": "proxied",
    }
    through.write_text(json.dumps(body))
    try:
        yield through
    finally:
        ends[0]()
        thread.join(10)
        assert not thread.is_alive(), "the proxy did not end"


def _context(config: dict[str, list[dict[str, dict[str, str]]]]) -> ssl.SSLContext:
    """TLS as the kubeconfig's user."""
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile() as file:
        for part in ("client-certificate-data", "client-key-data"):
            file.write(base64.b64decode(user[part]))
        file.flush()
        context.load_cert_chain(file.name)
    return context
