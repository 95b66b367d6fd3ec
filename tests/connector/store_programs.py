"""Mooncake's clients and metadata service as processes of their own."""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connector.environment import connector_path, program
from connector.processes import Process, accepts, wait_until

SEGMENT = 64 << 20
BUFFER = 32 << 20
P2P = "P2PHANDSHAKE"
_ENV = {"MC_FORCE_TCP": "1", "MC_RPC_TIMEOUT_MS": "2000"}


def setup_arguments(master_port: int, metadata: str = P2P, segment: int = SEGMENT) -> list[object]:
    """What Mooncake's `setup` takes."""
    return ["127.0.0.1", metadata, segment, BUFFER, "tcp", "", f"127.0.0.1:{master_port}"]


class Client:
    """A client process. Each call has a time limit; one that exceeds it raises TimeoutError."""

    def __init__(self, log: Path, env: dict[str, str] | None = None) -> None:
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                [program("python"), str(Path(__file__).with_name("store_client.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                env={**os.environ, **_ENV, "PYTHONPATH": connector_path(), **(env or {})},
            )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, method: str, *arguments: object, seconds: float = 60) -> Any:
        """Call a method of Mooncake's client."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._popen.stdin.flush()
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            msg = f"{method} did not return within {seconds} s"
            raise TimeoutError(msg) from None
        return json.loads(answer)

    def join(self, metadata: str, master_port: int, *, segment: int = SEGMENT) -> int:
        """Set the client up; 0, or a negative code."""
        return int(self("setup", *setup_arguments(master_port, metadata, segment)))

    def stop(self) -> None:
        """End it at once, as a pod that is killed."""
        self._popen.kill()
        self._popen.wait()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._answers.put(line)


@contextmanager
def client(log: Path, env: dict[str, str] | None = None) -> Iterator[Client]:
    """A client process that ends with the block."""
    started = Client(log, env)
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def metadata_service(log: Path, port: int) -> Iterator[Process]:
    """Mooncake's HTTP metadata service, which holds its state in memory."""
    process = Process([program("mooncake_http_metadata_server"), "--host", "127.0.0.1", "--port", str(port)], log)
    try:
        wait_until("the metadata service", 20, lambda: accepts(port), process)
        yield process
    finally:
        process.stop()
