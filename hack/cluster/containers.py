"""Ends what runs in pods: through containerd while it lives, by its shims when it does not."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from cluster import node, paths
from cluster.processes import Processes


def end_all(running: Processes) -> None:
    """End every container and every shim of our containerd. The pods' cgroup takes what is left."""
    if running.alive("containerd"):
        _end_through_containerd()
        deadline = time.monotonic() + 10
        while shims() and time.monotonic() < deadline:
            time.sleep(0.1)
    for pid in shims():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_through_containerd() -> None:
    ctr = [str(paths.binary("ctr")), "--address", str(node.SOCKET), "--timeout", "30s", "--namespace", "k8s.io"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        listed = subprocess.run([*ctr, "task", "ls", "-q"], capture_output=True, text=True, check=False, timeout=40)
        for task in listed.stdout.split():
            subprocess.run([*ctr, "task", "rm", "--force", task], capture_output=True, check=False, timeout=40)


def is_shim(command_line: bytes) -> bool:
    """Whether a /proc/<pid>/cmdline is a shim of our containerd: it carries our socket's path, which no other has."""
    words = command_line.split(b"\0")
    return words[0].endswith(b"containerd-shim-runc-v2") and str(node.SOCKET).encode() in words


def shims() -> list[int]:
    """The shims of our containerd that run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if is_shim((process / "cmdline").read_bytes()):
                found.append(int(process.name))
    return found
