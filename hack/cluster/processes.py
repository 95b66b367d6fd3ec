"""Long-running processes that are found again, and ended, by identity and never by name.

A process writes its own record before it becomes the program, so no crash of the starter can leave one unrecorded.
The record holds the pid, the kernel's start time of it and the boot: a pid that was given away is never mistaken.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.errors import ClusterError

_BOOT = Path("/proc/sys/kernel/random/boot_id")
# $0 is the record. The stat line holds pid and start time; exec keeps both.
_RECORD_AND_BECOME = f'cat /proc/$$/stat {_BOOT} > "$0.new" && mv "$0.new" "$0" && exec "$@"'


@dataclass(frozen=True)
class Identity:
    """One process of one boot. `started` is in clock ticks since that boot."""

    pid: int
    started: int
    boot: str


@dataclass(frozen=True)
class Program:
    """What to run. `name` names its record and its log."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    dies_with_parent: bool = False


def parse_stat(line: str) -> tuple[int, int, str]:
    """Pid, start time and state letter of a /proc/<pid>/stat line. The command name may hold blanks and brackets."""
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(")")[2].split()
    return int(pid), int(fields[19]), fields[0]


def parse_record(text: str) -> Identity | None:
    """The identity in a record; None when the record is torn."""
    lines = text.splitlines()
    if len(lines) < 2:
        return None
    try:
        pid, started, _ = parse_stat(lines[0])
    except (ValueError, IndexError):
        return None
    return Identity(pid, started, lines[1].strip())


@dataclass(frozen=True)
class Processes:
    """The processes recorded in one directory: `<name>.process` beside `<name>.log`."""

    directory: Path

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.directory / f"{name}.log"

    def record(self, name: str) -> Path:
        """The record of a process."""
        return self.directory / f"{name}.process"

    def names(self) -> list[str]:
        """Every process that has a record."""
        return sorted(path.stem for path in self.directory.glob("*.process"))

    def identity(self, name: str) -> Identity | None:
        """Who a process was when it started; None without a record."""
        try:
            return parse_record(self.record(name).read_text())
        except FileNotFoundError:
            return None

    def alive(self, name: str) -> bool:
        """Whether the process that was recorded still runs."""
        identity = self.identity(name)
        return identity is not None and is_alive(identity)

    def start(self, program: Program) -> Identity:
        """Start a program in a session of its own, its output appended to its log. Raises ClusterError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        record = self.record(program.name)
        record.unlink(missing_ok=True)
        argv = ["/bin/sh", "-c", _RECORD_AND_BECOME, str(record), *program.argv]
        if program.dies_with_parent:
            argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
        with self.log(program.name).open("ab") as log:
            # Not waited for on purpose: it outlives this command.
            child = subprocess.Popen(
                argv,
                env={**os.environ, **program.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.directory,
            )
        deadline = time.monotonic() + 10
        while (identity := self.identity(program.name)) is None:
            if child.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"{program.name} did not start; its log is {self.log(program.name)}")
            time.sleep(0.005)
        return identity

    def stop(self, name: str, *, grace: float = 10.0) -> None:
        """End a process: politely, then, after `grace` seconds, not. Removes the record. A dead one is no error."""
        identity = self.identity(name)
        if identity is not None:
            end(identity, grace=grace)
        self.record(name).unlink(missing_ok=True)

    def wait_ready(self, name: str, ready: Callable[[], bool], *, timeout: float, every: float = 0.1) -> None:
        """Wait until `ready()`. Raises ClusterError with the end of the log when the process dies or time is up."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.alive(name):
                raise ClusterError(f"{name} ended while starting.\n{self.explain(name)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{name} is not ready after {timeout:.0f} s.\n{self.explain(name)}")
            time.sleep(every)

    def explain(self, name: str, *, lines: int = 15) -> str:
        """The end of a log, with its place."""
        path = self.log(name)
        try:
            tail = path.read_text(errors="replace").splitlines()[-lines:]
        except FileNotFoundError:
            tail = []
        return "\n".join([f"The last lines of {path}:", *("  " + line for line in tail)])


def is_alive(identity: Identity) -> bool:
    """Whether this very process still runs. A zombie does not."""
    if identity.boot != _BOOT.read_text().strip():
        return False
    try:
        _, started, state = parse_stat(Path(f"/proc/{identity.pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return started == identity.started and state not in "ZX"


def end(identity: Identity, *, grace: float) -> None:
    """Send SIGTERM, wait, send SIGKILL. A descriptor holds the process, so its pid cannot change hands meanwhile."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            if not is_alive(identity):
                break
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, sign)
            # Readable once every thread has ended; the first thread alone looks dead before that.
            select.select([descriptor], [], [], patience)
    finally:
        os.close(descriptor)
    _reap(identity.pid)


def _reap(pid: int) -> None:
    # Only when it is a child of ours; a cluster's processes are the init's by then.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
