"""A TCP relay before an API server, that can lose connections as a bad network does: without a word.

What is lost stays open on both sides and carries nothing, not even its end. It runs in a thread with a loop of its own.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from router.programs import free_port


class Relay:
    """What the network does at present."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._lost = 0
        self._dark = threading.Event()

    def lose(self) -> None:
        """Every open connection is lost for ever; new ones get nowhere until `heal`."""
        self._dark.set()
        self._lost += 1

    def heal(self) -> None:
        """New connections get through again."""
        self._dark.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        while self._dark.is_set():  # noqa: ASYNC110 - another thread clears it
            await asyncio.sleep(0.1)
        since = self._lost
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(*self._target)
            await asyncio.gather(
                self._pump(reader, there[1], since), self._pump(there[0], writer, since), return_exceptions=True
            )
            there[1].close()
        writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, since: int) -> None:
        while data := await reader.read(1 << 16):
            if self._lost == since:
                writer.write(data)
                await writer.drain()
        if self._lost == since:
            writer.close()


@contextmanager
def relay(kubeconfig: Path) -> Iterator[tuple[Relay, Path]]:
    """A relay, and a kubeconfig that leads through it, for as long as the block runs."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    where = urlsplit(cluster["server"])
    line, port, ready = Relay(str(where.hostname), int(where.port or 443)), free_port(), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(line.serve, sock=socket.create_server(("127.0.0.1", port)))
        ready.set()
        await stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10), "the relay did not start"
    # The API server's certificate is good for 127.0.0.1, whatever the port.
    cluster["server"] = f"https://127.0.0.1:{port}"
    through = kubeconfig.with_suffix(f".{port}.relayed")
    through.write_text(yaml.safe_dump(config))
    try:
        yield line, through
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive(), "the relay did not end"
