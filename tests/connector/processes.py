"""Programs that tests run: started with a log, stopped whatever happens."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from connector.environment import program


def free_port() -> int:
    """A port that nobody listens on now, below those that the kernel gives to clients."""
    for port in range(20000 + os.getpid() % 5000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _given:
                _given.add(port)
                return port
    raise RuntimeError("no free port")


_given: set[int] = set()


class Process:
    """A running program in a process group of its own."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                ["nice", *command], stdout=out, stderr=out, env={**os.environ, **(env or {})}, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Its process id, and that of the group and session of all that it starts."""
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        os.killpg(self._popen.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it and its children; killed if it takes more than 20 s."""
        for last in (number, signal.SIGKILL):
            try:
                self.send(last)
                self._popen.wait(timeout=20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
            break
        try:
            self.send(signal.SIGKILL)
        except ProcessLookupError:
            return

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def wait_until(what: str, seconds: float, check: object, process: Process) -> None:
    """Ask until `check()` is true. Fails with the program's log when it ends or the time is over."""
    assert callable(check)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.is_running, f"waiting for {what}: the program ended\n{process.tail()}"
        if check():
            return
        time.sleep(0.1)
    raise AssertionError(f"waiting for {what}: not within {seconds} s\n{process.tail()}")


def accepts(port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - loopback
            return bool(response.status == 200)
    except OSError:
        return False


@contextmanager
def master(log: Path, *, port: int | None = None, flags: Sequence[str] = ()) -> Iterator[tuple[int, Process]]:
    """A Mooncake master; its RPC port and its process."""
    rpc = port or free_port()
    places = [f"--rpc_port={rpc}", f"--metrics_port={free_port()}", "--metrics_host=127.0.0.1", "--logtostderr"]
    process = Process([program("mooncake_master"), "--rpc_address=127.0.0.1", *places, *flags], log)
    try:
        wait_until("the Mooncake master", 90, lambda: accepts(rpc), process)
        yield rpc, process
    finally:
        process.stop()
