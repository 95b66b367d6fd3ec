"""Up and down of the whole cluster. Each can be run at any time, also on what a crash left behind."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from cluster import (
    before,
    binaries,
    cgroups,
    containers,
    control_plane,
    health,
    mounts,
    network,
    node,
    paths,
    pause,
    registry,
)
from cluster.control_plane import Plane
from cluster.errors import ClusterError
from cluster.health import Component
from cluster.ports import holder
from cluster.processes import Processes

Say = Callable[[str], None]

PLANE = Plane(
    paths.STATE,
    network.NODE_ADDRESS,
    6443,
    22379,
    22380,
    audit_log=paths.audit_log(),
    has_nodes=True,
)
PORTS = (6443, 22379, 22380, 10248, 10249, 10250, 10256, 10257, 10259)
"""What the cluster listens on, beside CoreDNS' 53 on the bridge and the registry's 5000."""


def processes() -> Processes:
    """The cluster's processes."""
    return Processes(paths.STATE / "processes")


def status() -> list[Component]:
    """Every part of the cluster and whether it is well."""
    return health.components(PLANE, processes())


def up(say: Say) -> None:
    """Bring the cluster up, or find it well. What is half there is taken down first. Raises ClusterError."""
    _check_root()
    node.check_prerequisites()
    binaries.require(binaries.GROUPS["cluster"])
    if has_traces():
        if all(part.is_healthy for part in status()):
            say(f"cluster: already up and healthy; kubeconfig {paths.kubeconfig()}")
            return
        say("cluster: what an earlier one left is taken down first")
        down(say)
    check_ports()
    say("cluster: registry, network, certificates")
    registry.up()
    pause.ensure()
    _prepare()
    _start(say)
    say(f"cluster: up; kubeconfig {paths.kubeconfig()}")


def has_traces() -> bool:
    """Whether a cluster is here, whole or in part."""
    return paths.STATE.exists() or paths.RUN.exists() or network.exists() or cgroups.exists()


def check_ports() -> None:
    """Raise ClusterError when another process holds a port of ours."""
    for port in PORTS:
        if (who := holder(port)) is not None:
            raise ClusterError(f"port {port} is held by {who}; the local cluster needs it, so stop that first")


def _check_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root: it makes a bridge, mounts and cgroups")


def _prepare() -> None:
    """Everything that must be there before the first process."""
    paths.STATE.mkdir(parents=True, exist_ok=True)
    paths.RUN.mkdir(parents=True, exist_ok=True)
    before.keep(paths.STATE)
    network.up()
    cgroups.up()
    control_plane.write_files(PLANE, node.NAME)
    shutil.copy(PLANE.kubeconfig("admin"), paths.kubeconfig())
    paths.kubeconfig().chmod(0o600)
    node.write_files(PLANE)


def _start(say: Say) -> None:
    running = processes()
    say("cluster: control plane")
    control_plane.start_api(PLANE, running)
    for program in (
        control_plane.controller_manager(PLANE),
        control_plane.scheduler(PLANE),
        node.containerd(),
        node.coredns(),
    ):
        running.start(program)
    running.wait_ready("containerd", health.is_containerd_ready, timeout=60)
    say("cluster: node")
    running.start(node.kubelet(PLANE))
    running.start(node.kube_proxy())
    running.wait_ready("kubelet", health.is_node_ready, timeout=120, every=0.5)
    _declare_disk()
    _wait_until_well(running)


def _wait_until_well(running: Processes, *, timeout: float = 60) -> None:
    """Wait for the parts that nothing waited for yet. Raises ClusterError with the log of one that is not well."""
    deadline = time.monotonic() + timeout
    while bad := [part for part in status() if not part.is_healthy]:
        if time.monotonic() > deadline:
            told = "\n".join(f"{part.name}: {part.told}\n{running.explain(part.name)}" for part in bad)
            raise ClusterError(f"not well after {timeout:.0f} s:\n{told}")
        time.sleep(0.5)
    # Pods are refused until a controller has made their namespace's account.
    running.wait_ready("kube-controller-manager", health.has_default_account, timeout=timeout)


def _declare_disk() -> None:
    """Tell the scheduler of the node's disk: kubelet cannot measure it on every machine, so its own way is off."""
    free = shutil.disk_usage(paths.STATE).free
    amounts = {"ephemeral-storage": str(free)}
    patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
    done = health.kubectl("patch", "node", node.NAME, "--subresource=status", "--type=merge", "-p", patch)
    if done.returncode != 0:
        raise ClusterError(f"the node's disk could not be declared: {done.stderr.strip()}")


def down(say: Say) -> None:
    """Take the cluster down and remove what it made. Caches and the registry's images stay. Raises ClusterError."""
    if not has_traces():
        registry.down()
        say("cluster: nothing to take down")
        return
    _check_root()
    running = processes()
    # First those that would start pods again, last the one that they all talk to.
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "coredns"):
        running.stop(name)
    say("cluster: ending containers")
    containers.end_all(running)
    running.stop("containerd")
    cgroups.down()
    for name in ("kube-apiserver", "etcd"):
        running.stop(name)
    mounts.unmount_below(paths.STATE, paths.RUN)
    network.down()
    registry.down()
    before.restore(paths.STATE)
    for directory in (paths.RUN, paths.STATE):
        _remove(directory)
    say("cluster: down")


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
