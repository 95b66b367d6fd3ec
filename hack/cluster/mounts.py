"""Mounts below the cluster's directories: pods' volumes, root file systems and network namespaces."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.errors import ClusterError


def mount_points(table: str) -> list[str]:
    """Mount points in the text of /proc/mounts, in its order. Blanks are written there as octal numbers."""
    points = (line.split()[1] for line in table.splitlines() if line)
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), point) for point in points]


def below(points: Iterable[str], directories: Sequence[Path]) -> list[str]:
    """Those points that are in our directories, deepest first; two mounts on one point are two entries."""
    prefixes = tuple(f"{directory}/" for directory in directories)
    return sorted((point for point in points if point.startswith(prefixes)), key=len, reverse=True)


def unmount_below(*directories: Path) -> None:
    """Unmount all that is below. Raises ClusterError when something stays: through it we would delete others' data."""
    for point in _current(directories):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    if left := _current(directories):
        raise ClusterError(f"still mounted: {', '.join(left)}; unmount it, then run `down` again")


def _current(directories: Sequence[Path]) -> list[str]:
    return below(mount_points(Path("/proc/mounts").read_text()), directories)
