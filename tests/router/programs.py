"""Starts programs for a test and ends them by their process id, whatever happens to the test."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


class Program:
    """One running program. Its output goes to a file that a failing test may print."""

    def __init__(self, argv: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def end(self) -> None:
        """Ends it at once, stopped or not."""
        if self.running:
            self._process.kill()
        self._process.wait(10)

    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def running(*programs: Program) -> Iterator[None]:
    """Ends the programs when the block ends."""
    try:
        yield
    finally:
        for program in reversed(programs):
            program.end()


_given: set[int] = set()


def has_ipv6() -> bool:
    """Whether this kernel lets programs listen on IPv6's loopback."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now and was not given before. Below those that the kernel hands to clients (32768 and up)."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if port not in _given and probe.connect_ex((host, port)):
                _given.add(port)
                return port


def eventually(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Waits until the condition holds. Raises AssertionError that names `what` did not come about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
