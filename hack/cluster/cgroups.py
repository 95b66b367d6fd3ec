"""The cgroup below which all pods run: made by `up`, removed by `down`. All others are left alone."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ClusterError

NAME = "disagg-cluster"
_ROOT = Path("/sys/fs/cgroup")


def _hierarchies() -> list[Path]:
    """Mounted hierarchies: one on cgroup v2, one for each controller on v1."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink()]


def exists() -> bool:
    """Whether our cgroup is there, in any hierarchy."""
    return any((hierarchy / NAME).exists() for hierarchy in _hierarchies())


def up() -> None:
    """Make our cgroup in every hierarchy. A cpuset must name its processors before anything runs in it."""
    for hierarchy in _hierarchies():
        ours = hierarchy / NAME
        ours.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (
                (ours / setting).exists()
                and (hierarchy / setting).exists()
                and not (ours / setting).read_text().strip()
            ):
                (ours / setting).write_text((hierarchy / setting).read_text())


def down() -> None:
    """End what still runs in our cgroup, then remove it."""
    for hierarchy in _hierarchies():
        ours = hierarchy / NAME
        if not ours.exists():
            continue
        deadline = time.monotonic() + 20
        while pids := set(_pids(ours)):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                raise ClusterError(f"these processes of pods do not end: {sorted(pids)}; then run `down` again")
            time.sleep(0.1)
        for folder, _, _ in os.walk(ours, topdown=False):
            Path(folder).rmdir()


def _pids(group: Path) -> Iterator[int]:
    for folder, _, files in os.walk(group):
        if "cgroup.procs" in files:
            yield from (int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())
