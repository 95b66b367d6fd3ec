"""TCP ports of this machine: which are free, and who holds one that is not."""

import os
import socket
from pathlib import Path

_LISTEN = "0A"


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def listening_inodes(table: str, port: int) -> set[str]:
    """Socket inodes that listen on a port, in the text of /proc/net/tcp or tcp6."""
    rows = (line.split() for line in table.splitlines()[1:])
    return {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}


def holder(port: int) -> str | None:
    """Who listens on a port, as `pid 12 (name)`; None when nobody does."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if Path(table).exists():
            inodes |= listening_inodes(Path(table).read_text(), port)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        if wanted & _open_files(process):
            return f"pid {process.name} ({(process / 'comm').read_text().strip()})"
    return "a process that cannot be seen from here"


def _open_files(process: Path) -> set[str]:
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            try:
                found.add(os.readlink(descriptor))
            except OSError:
                continue
    except OSError:
        return set()
    return found
