"""Up and down of the real cluster. Runs last: it ends with the cluster down."""

import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from cluster import containers, lifecycle, network, paths
from cluster.errors import ClusterError
from demo.cluster import tool
from demo.kubectl import Kubectl

pytestmark = pytest.mark.cluster
LeftBehind = Callable[[], list[str]]


def up() -> str:
    return tool("cluster", "up", capture=True)


def down() -> str:
    return tool("cluster", "down", capture=True)


def kill(*names: str) -> None:
    """End processes of the cluster as a crash would."""
    running = lifecycle.processes()
    for name in names:
        identity = running.identity(name)
        assert identity is not None
        os.kill(identity.pid, signal.SIGKILL)


def assert_well() -> None:
    bad = [part for part in lifecycle.status() if not part.is_healthy]
    assert not bad


def test_every_part_is_well_and_a_second_up_changes_nothing(cluster_up: Kubectl) -> None:
    assert_well()
    first = {name: lifecycle.processes().identity(name) for name in lifecycle.processes().names()}
    assert "already up" in up()
    assert {name: lifecycle.processes().identity(name) for name in lifecycle.processes().names()} == first


def test_the_kubeconfig_is_private_and_its_context_is_named(cluster_up: Kubectl) -> None:
    assert paths.kubeconfig().stat().st_mode & 0o077 == 0
    assert cluster_up.run("config", "current-context").strip() == "disagg-local"


def test_status_fails_when_a_part_is_dead_and_up_mends_it(cluster_up: Kubectl) -> None:
    kill("kubelet")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        tool("cluster", "status", capture=True)
    told = {line.split()[0]: line for line in failure.value.stdout.splitlines()}
    assert "NOT WELL" in told["kubelet"]
    assert "healthy" in told["etcd"]
    up()
    assert_well()


def test_pods_of_a_dead_containerd_are_ended(cluster_up: Kubectl, probe_image: str, left_behind: LeftBehind) -> None:
    cluster_up.run("run", "orphan", f"--image={probe_image}", "--", "serve")
    cluster_up.run("wait", "--for=condition=Ready", "pod/orphan", "--timeout=120s")
    assert containers.shims()
    kill("containerd", "kubelet", "kube-apiserver", "etcd")
    down()
    assert left_behind() == []


def test_down_with_pods_leaves_nothing_and_can_be_repeated(probe_image: str, left_behind: LeftBehind) -> None:
    up()
    kubectl = Kubectl(paths.binary("kubectl"), paths.kubeconfig())
    kubectl.run("create", "deployment", "web", f"--image={probe_image}", "--replicas=2", "--", "/probe", "serve")
    kubectl.run("rollout", "status", "deployment/web", "--timeout=120s")
    down()
    assert left_behind() == []
    assert "nothing to take down" in down()


def test_a_bridge_that_an_earlier_run_left_is_taken_over_and_removed(left_behind: LeftBehind) -> None:
    network.up()
    paths.STATE.mkdir()
    (paths.STATE / "processes").mkdir()
    (paths.STATE / "processes" / "etcd.process").write_text("torn")
    up()
    assert_well()
    down()
    # Forwarding was switched on before the first note of it was made, by this test.
    assert [line for line in left_behind() if "ip_forward" not in line] == []


def test_a_foreign_bridge_is_named_and_left_alone() -> None:
    network.run("ip", "link", "add", network.BRIDGE, "type", "bridge")
    try:
        with pytest.raises(ClusterError, match="belongs to another cluster"):
            network.up()
        assert "nothing to take down" in down()
        assert any(link["ifname"] == network.BRIDGE for link in network.links())
    finally:
        network.run("ip", "link", "delete", network.BRIDGE)


def test_a_held_port_is_named_with_its_holder() -> None:
    import socket

    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 10250))
        holder.listen()
        with pytest.raises(ClusterError, match=rf"port 10250 is held by pid {os.getpid()} "):
            lifecycle.check_ports()
