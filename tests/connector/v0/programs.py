"""V0 workers as processes: producers, consumers, and a client that looks into the store."""

import base64
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connector.environment import connector_path, program
from connector.processes import Process, master
from connector.store_programs import P2P, Client, setup_arguments

_TESTS = Path(__file__).parents[2]
SEGMENT = 1 << 30
# A busy machine stands still for seconds at times. Tests of a store that does not answer have less patience.
PATIENT, IMPATIENT = "60000", "2000"
NAME = "MooncakeStoreConnector"


class CallFailed(Exception):  # noqa: N818 - what a worker's call raised, told here
    """A call raised in the worker. The text has the type and what it says."""


class Worker(Client):
    """A process of worker.py, or of another script. `python` is that of the environment to run it in."""

    def __init__(
        self, kind: str, log: Path, env: dict[str, str], python: str | None = None, script: Path | None = None
    ) -> None:
        path = os.pathsep.join((connector_path(), str(_TESTS)))
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                ["nice", python or program("python"), str(script or Path(__file__).with_name("worker.py")), kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                env={**os.environ, "MC_FORCE_TCP": "1", "MC_RPC_TIMEOUT_MS": PATIENT, "PYTHONPATH": path, **env},
            )
        self._answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, method: str, *arguments: object, seconds: float = 120) -> Any:
        """Call a method of the worker. Raises CallFailed if it raised."""
        answer = super().__call__(method, *arguments, seconds=seconds)
        if "raised" in answer:
            raise CallFailed(answer["raised"])
        return answer["result"]

    def open(self, geometry: dict[str, Any] | None = None, rank: int = 0, local_rank: int = 0, **extra: Any) -> None:
        """Make a connector, in place of the one before, and wait until it has joined the store."""
        error = self("open", geometry or {}, rank, local_rank, extra, NAME)
        assert error == "", error
        self.wait_usable()

    def wait_usable(self, seconds: float = 90) -> None:
        """Wait until calls go to the store."""
        deadline = time.monotonic() + seconds
        while not self("usable"):
            assert time.monotonic() < deadline, f"the store cannot be used within {seconds} s"
            time.sleep(0.1)

    def bytes_of(self, key: str) -> bytes:
        """What lies under a key (of a raw client)."""
        return base64.b64decode(self("get", key))

    def put_bytes(self, key: str, data: bytes) -> int:
        """Put bytes (with a raw client); 0, or a negative code."""
        return int(self("put", key, base64.b64encode(data).decode()))

    def count(self, name: str) -> float:
        """One of the connector's sums."""
        return float(self("counters").get(name, 0))


class Site:
    """A master, and workers on it."""

    def __init__(self, folder: Path, port: int, process: Process, segment: int) -> None:
        self.folder = folder
        self.segment = segment
        self.master_port = port
        self.master = process
        self._workers: list[Worker] = []

    @property
    def config(self) -> Path:
        """The file that `MOONCAKE_CONFIG_PATH` names."""
        path = self.folder / "mooncake_config.json"
        path.write_text(
            json.dumps(
                {
                    "local_hostname": "127.0.0.1",
                    "metadata_server": P2P,
                    "mode": "embedded" if self.segment else "standalone-store",
                    "global_segment_size": self.segment,
                    "local_buffer_size": 128 << 20,
                    "protocol": "tcp",
                    "device_name": "",
                    "master_server_address": f"127.0.0.1:{self.master_port}",
                }
            )
        )
        return path

    def worker(self, kind: str = "ours", python: str | None = None, script: Path | None = None, **env: str) -> Worker:
        """Start a worker. It lives until the site ends."""
        name = f"{kind}-{len(self._workers)}"
        # What a worker that is killed leaves behind goes with the test's folder.
        temporary = self.folder / f"{name}.tmp"
        temporary.mkdir()
        paths = {"MOONCAKE_CONFIG_PATH": str(self.config), "TMPDIR": str(temporary)}
        one = Worker(kind, self.folder / f"{name}.log", {**paths, **env}, python, script)
        self._workers.append(one)
        return one

    def raw(self, segment: int = 0, script: Path | None = None) -> Worker:
        """Start a client that looks into the store, and may lend it memory."""
        one = self.worker("raw", script=script)
        assert one("setup", *setup_arguments(self.master_port, segment=segment)) == 0
        return one

    def stop(self) -> None:
        """End all workers."""
        for one in self._workers:
            one.stop()


@contextmanager
def site(folder: Path, segment: int = 0) -> Iterator[Site]:
    """A master with no worker yet. Each worker will lend `segment` bytes."""
    with master(folder / "master.log") as (port, process):
        made = Site(folder, port, process, segment)
        try:
            yield made
        finally:
            made.stop()
