"""The real local cluster, brought up once, and what of the machine it could change, as plain text to compare."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import before, mounts, paths, pause, registry
from cluster.locks import exclusive
from demo.cluster import tool
from demo.kubectl import Kubectl

Snapshot = dict[str, list[str]]
OURS = (str(paths.STATE), str(paths.RUN), str(paths.REGISTRY_RUN))


def take_snapshot() -> Snapshot:
    """One list of lines for each kind of trace."""
    return {
        "mounts": sorted(mounts.mount_points(Path("/proc/mounts").read_text())),
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "nft rules": without_counters(_run("nft", "list", "ruleset")),
        "iptables rules": without_counters(_run("iptables-save")),
        "routes": _run("ip", "route").splitlines(),
        "hosts": Path("/etc/hosts").read_text().splitlines(),
        "settings": [f"{name}={value}" for name, value in before.read_settings(before.SETTINGS).items()],
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("*/*") if path.is_dir()),
        "directories": [name for name in [*before.DIRECTORIES, *OURS, "/run/nri"] if Path(name).exists()],
        "processes": _our_processes(),
    }


def without_counters(rules: str) -> list[str]:
    """Rules without comments, times and counts of packets, which move by themselves."""
    lines = (line for line in rules.splitlines() if not line.startswith("#"))
    return [re.sub(r"\[\d+:\d+\]|packets \d+ bytes \d+", "", line) for line in lines]


def differences(first: Snapshot, second: Snapshot) -> list[str]:
    """What came and what went, one line each."""
    told = []
    for kind, lines in first.items():
        told += [f"{kind}: left behind: {line}" for line in second[kind] if line not in lines]
        told += [f"{kind}: gone: {line}" for line in lines if line not in second[kind]]
    return told


def _our_processes() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if any(place in line for place in OURS):
            found.append(f"{process.name} {line.strip()}")
    return found


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def machine_before() -> Iterator[Snapshot]:
    """The machine without a cluster; one that runs is taken down. The session leaves none behind either."""
    tool("cluster", "down")
    yield take_snapshot()
    tool("cluster", "down")


@pytest.fixture(scope="session")
def cluster_up(machine_before: Snapshot) -> Kubectl:
    """kubectl for the running cluster."""
    tool("cluster", "up")
    return Kubectl(paths.binary("kubectl"), paths.kubeconfig())


@pytest.fixture
def left_behind(machine_before: Snapshot) -> Callable[[], list[str]]:
    """Tells what is on the machine now and was not before, or the other way round."""
    return lambda: differences(machine_before, take_snapshot())


@pytest.fixture(scope="session")
def probe_image(cluster_up: Kubectl) -> str:
    """An image with the one program `/probe`."""
    reference = f"{registry.ADDRESS}/disagg-tests/probe:1"
    with exclusive("probe"):
        pause.push_static(Path(__file__).parent / "probe", reference)
    return reference
