"""Up, down and status of the whole cluster. Each can be run at any time, also on what a crash left behind."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, cgroups, control_plane, network, node, paths, pause, registry
from cluster.control_plane import Plane
from cluster.errors import ClusterError
from cluster.ports import holder
from cluster.processes import Processes, Program

PLANE = Plane(
    paths.STATE,
    network.NODE_ADDRESS,
    6443,
    22379,
    22380,
    audit_log=paths.audit_log(),
    has_nodes=True,
)
# In the order of starting; `down` goes the other way.
ORDER = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "coredns",
    "kubelet",
    "kube-proxy",
)


@dataclass(frozen=True)
class Component:
    """One line of `status`."""

    name: str
    is_healthy: bool
    told: str


def processes() -> Processes:
    """The cluster's processes."""
    return Processes(paths.STATE / "processes")


def kubectl(*args: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """kubectl as administrator."""
    command = [str(paths.binary("kubectl")), "--kubeconfig", str(paths.kubeconfig()), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def status() -> list[Component]:
    """Every part of the cluster and whether it is well."""
    running = processes()
    parts = []
    for name in ORDER:
        identity = running.identity(name)
        alive = running.alive(name)
        parts.append(Component(name, alive, f"pid {identity.pid}" if alive and identity else "not running"))
    parts.append(Component("registry", registry.is_healthy(), registry.ADDRESS))
    ready = all(part.is_healthy for part in parts) and control_plane.is_api_ready(PLANE) and is_node_ready()
    parts.append(Component("node", ready, f"{node.NAME} is {'Ready' if ready else 'not Ready'}"))
    return parts


def is_node_ready() -> bool:
    """Whether the API server says that the node is Ready."""
    if not paths.kubeconfig().exists():
        return False
    done = kubectl("get", "node", node.NAME, "-o", "json", timeout=10)
    if done.returncode != 0:
        return False
    conditions = json.loads(done.stdout)["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def up(say: Callable[[str], None]) -> None:
    """Bring the cluster up, or find it well. What is half there is taken down first. Raises ClusterError."""
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root: it makes a bridge, mounts and cgroups")
    node.check_prerequisites()
    binaries.require(binaries.GROUPS["all"])
    if all(part.is_healthy for part in status()):
        say("cluster: already up and healthy")
        return
    if paths.STATE.exists() or paths.RUN.exists():
        say("cluster: what an earlier one left is taken down first")
        down(say)
    _check_ports()
    say("cluster: registry, network, certificates")
    registry.up()
    pause.ensure()
    paths.STATE.mkdir(parents=True, exist_ok=True)
    paths.RUN.mkdir(parents=True, exist_ok=True)
    network.up(paths.STATE)
    cgroups.up()
    control_plane.write_files(PLANE, node.NAME)
    shutil.copy(PLANE.kubeconfig("admin"), paths.kubeconfig())
    paths.kubeconfig().chmod(0o600)
    node.write_files(PLANE)
    running = processes()
    say("cluster: control plane")
    control_plane.start_api(PLANE, running)
    rest: list[Program] = [
        control_plane.controller_manager(PLANE),
        control_plane.scheduler(PLANE),
        node.containerd(),
        node.coredns(),
    ]
    for program in rest:
        running.start(program)
    running.wait_ready("containerd", node.SOCKET.exists, timeout=60)
    say("cluster: node")
    running.start(node.kubelet(PLANE))
    running.start(node.kube_proxy())
    running.wait_ready("kubelet", is_node_ready, timeout=120, every=0.5)
    _declare_disk()
    say(f"cluster: up; kubeconfig {paths.kubeconfig()}")


def _declare_disk() -> None:
    """Tell the scheduler of the node's disk: kubelet cannot measure it on every machine, so its own way is off."""
    free = shutil.disk_usage(paths.STATE).free
    amounts = {"ephemeral-storage": str(free)}
    patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
    done = kubectl("patch", "node", node.NAME, "--subresource=status", "--type=merge", "-p", patch)
    if done.returncode != 0:
        raise ClusterError(f"the node's disk could not be declared: {done.stderr.strip()}")


def _check_ports() -> None:
    for port in (6443, 22379, 22380, 10250, 10257, 10259):
        if (who := holder(port)) is not None:
            raise ClusterError(f"port {port} is held by {who}; the local cluster needs it, so stop that first")


def down(say: Callable[[str], None]) -> None:
    """Take the cluster down and remove what it made. Caches and the registry's images stay."""
    if not paths.STATE.exists() and not paths.RUN.exists():
        registry.down()
        say("cluster: nothing to take down")
        return
    running = processes()
    for name in ("kube-proxy", "kubelet", "coredns"):
        running.stop(name)
    say("cluster: ending containers")
    _end_containers(running)
    running.stop("containerd")
    cgroups.down()
    for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
        running.stop(name)
    _unmount_below(paths.STATE, paths.RUN)
    network.down(paths.STATE)
    registry.down()
    for directory in (paths.STATE, paths.RUN):
        shutil.rmtree(directory, ignore_errors=True)
    say("cluster: down")


def _end_containers(running: Processes) -> None:
    """End every container through containerd; when it is dead, its shims are found by our socket's name."""
    if running.alive("containerd"):
        ctr = [str(paths.binary("ctr")), "--address", str(node.SOCKET), "--namespace", "k8s.io"]
        listed = subprocess.run([*ctr, "task", "ls", "-q"], capture_output=True, text=True, check=False, timeout=30)
        for task in listed.stdout.split():
            subprocess.run([*ctr, "task", "rm", "--force", task], capture_output=True, check=False, timeout=30)
    deadline = time.monotonic() + 10
    while (shims := _shims()) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in shims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def _shims() -> list[int]:
    """Shims of our containerd: they carry its socket in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().split(b"\0")
            if line and line[0].endswith(b"containerd-shim-runc-v2") and str(node.SOCKET).encode() in line:
                found.append(int(process.name))
    return found


def _unmount_below(*directories: Path) -> None:
    """Unmount everything below our directories, deepest first."""
    prefixes = tuple(f"{directory}/" for directory in directories)
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((p for p in points if p.startswith(prefixes)), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
