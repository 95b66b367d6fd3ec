"""What the machine was like before `up`: kernel settings, and directories that kubelet and containerd make unasked.

Both write to a few places that no flag moves. `up` notes what was there, `down` puts settings back and removes what was
not there before.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""Kernel settings, below /proc/sys, that kubelet and the pod network need otherwise."""

DIRECTORIES = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods")
"""Directories with a fixed place. One that was there before belongs to someone else and stays."""

_SYS = Path("/proc/sys")
_FILE = "before.json"


def read_settings(names: Iterable[str], sys: Path = _SYS) -> dict[str, str]:
    """The values of kernel settings that exist here."""
    return {name: (sys / name).read_text().strip() for name in names if (sys / name).exists()}


def write_settings(wanted: Mapping[str, str], sys: Path = _SYS) -> None:
    """Write the settings that differ."""
    for name, value in wanted.items():
        if read_settings([name], sys).get(name, value) != value:
            (sys / name).write_text(f"{value}\n")


def keep(state: Path) -> None:
    """Note how the machine is, once: a second call must not take our own changes for the machine's."""
    note = state / _FILE
    if note.exists():
        return
    missing = [directory for directory in DIRECTORIES if not Path(directory).exists()]
    text = json.dumps({"settings": read_settings(SETTINGS), "missing": missing}, indent=2)
    # Renamed into place: a torn note would be lost knowledge.
    (state / f"{_FILE}.new").write_text(text)
    (state / f"{_FILE}.new").rename(note)


def restore(state: Path) -> None:
    """Put kernel settings back and remove the directories that were not there. Nothing is done without a note."""
    note = state / _FILE
    if not note.exists():
        return
    noted = json.loads(note.read_text())
    write_settings(noted["settings"])
    for directory in noted["missing"]:
        if directory in DIRECTORIES:
            shutil.rmtree(directory, ignore_errors=True)
