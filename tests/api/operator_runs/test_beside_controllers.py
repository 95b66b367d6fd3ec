"""Beside Kubernetes' own controllers: a quota that is too small, `kubectl rollout restart`, ports of nodes.

The controllers of Deployments, ReplicaSets and quotas run here, and for one test the scheduler. A script does what a
kubelet would.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from api.manifests import resource
from api.operator_runs.kubelet import pods_become_ready
from api.operator_runs.site import Json, Site, holds_for
from cluster import control_plane
from cluster.apiserver import ApiServer
from cluster.processes import Processes
from demo.kubectl import Kubectl
from router.programs import eventually, free_port

# Each takes tens of seconds: pods come and go, and a quota's refusals are tried again later and later.
pytestmark = pytest.mark.long
ROLE = "inference.disagg.io/role"


def wish(site: Site, prefill: int, decode: int) -> None:
    site.apply(resource("llama", prefill={"replicas": prefill}, decode={"replicas": decode}))


def pods(site: Site) -> dict[str, int]:
    """Pods of each engine role that are not leaving."""
    found = site.must("GET", site.path("pods"))["items"]
    roles = [pod["metadata"]["labels"][ROLE] for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return {role: roles.count(role) for role in ("prefill", "decode")}


def limit_pods(site: Site, number: int) -> None:
    """A quota of so many pods, in force."""
    site.must("POST", site.path("resourcequotas"), {"metadata": {"name": "few"}, "spec": {"hard": {"pods": number}}})

    def is_counted() -> bool:
        return "used" in site.live("resourcequotas", "few").get("status", {})

    eventually(is_counted, "the quota is in force")


@pytest.mark.parametrize("at_once", [True, False], ids=["one-edit", "larger-first"])
def test_shifting_pods_between_roles_within_a_quota(spare: Site, *, at_once: bool) -> None:
    """Field case C86: 2P2D to 3P1D, where master, router and four engines are all that may be."""
    limit_pods(spare, 6)
    with spare.operator(), pods_become_ready(spare):
        wish(spare, 2, 2)
        spare.wait_condition("llama", "Ready", "True", seconds=60)
        if not at_once:
            wish(spare, 3, 2)
            told = spare.wait_condition("llama", "Degraded", "True", "PodFailing", seconds=60)
            assert "exceeded quota: few" in told["message"]
            spare.wait_condition("llama", "Available", "True")
        wish(spare, 3, 1)
        spare.wait_condition("llama", "Ready", "True", seconds=90)
        spare.wait_condition("llama", "Degraded", "False")
        assert pods(spare) == {"prefill": 3, "decode": 1}


def test_a_role_to_zero_and_back_at_once_leaves_no_orphan(spare: Site) -> None:
    """Field case C80: each second edit comes while the pods of the first are still leaving."""
    with spare.operator(), pods_become_ready(spare):
        wish(spare, 1, 2)
        spare.wait_condition("llama", "Ready", "True", seconds=60)
        sets = replica_sets(spare)
        for turn in range(10):
            wish(spare, turn % 2, 0)
            eventually(lambda: pods(spare)["decode"] < 2, "pods leave")
            wish(spare, 1, 2)
        spare.wait_condition("llama", "Ready", "True", "Ready", seconds=60)
        assert pods(spare) == {"prefill": 1, "decode": 2}
        assert replica_sets(spare) == sets, "no revision came of it"
        eventually(lambda: len(spare.must("GET", spare.path("pods"))["items"]) == 5, "nobody else is left")


def replica_sets(site: Site) -> set[str]:
    found = site.must("GET", f"/apis/apps/v1/namespaces/{site.namespace}/replicasets")["items"]
    return {one["metadata"]["name"] for one in found}


def test_rollout_restart_of_a_deployment_goes_to_its_end(spare: Site, spare_kubectl: Kubectl) -> None:
    """Field case C34: the pods are replaced, the annotation stays, and nothing is written once that is done."""
    with spare.operator(), pods_become_ready(spare):
        wish(spare, 1, 2)
        spare.wait_condition("llama", "Ready", "True", seconds=60)
        before = names(spare)
        spare_kubectl.run("rollout", "restart", "deployment/llama-decode", "-n", spare.namespace)
        spare_kubectl.run("rollout", "status", "deployment/llama-decode", "-n", spare.namespace, "--timeout=60s")
        spare.wait_condition("llama", "Ready", "True")
        after = names(spare)
        assert {name for name in after & before if "-decode-" in name} == set()
        assert {name for name in after if "-decode-" not in name} == {name for name in before if "-decode-" not in name}
        template = spare.live("deployments", "llama-decode")["spec"]["template"]
        assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]
        spare.wait_quiet("llama")
        versions = spare.versions("llama")
        assert holds_for(lambda: spare.versions("llama") == versions, 2), "nobody fights"


def names(site: Site) -> set[str]:
    """Pods that are not leaving."""
    found: list[Json] = site.must("GET", site.path("pods"))["items"]
    return {pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]}


@contextmanager
def scheduled(server: ApiServer) -> Iterator[None]:
    """Kubernetes' scheduler, while the block runs."""
    processes = Processes(server.plane.directory / "processes")
    program = control_plane.scheduler(server.plane)
    processes.start(replace(program, argv=[*program.argv, f"--secure-port={free_port()}"], dies_with_parent=True))
    try:
        yield
    finally:
        processes.stop(program.name)


def add_node(site: Site, name: str) -> None:
    """A node with room for anything, GPUs and a network card for RDMA."""
    site.must("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    # A new node is closed until a controller that does not run here has seen it.
    site.must("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, "application/merge-patch+json")
    room = {
        "cpu": "64",
        "memory": "512Gi",
        "pods": "100",
        "ephemeral-storage": "1Ti",
        "nvidia.com/gpu": "8",
        "rdma/hca": "8",
    }
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    site.must("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, "application/merge-patch+json")


def test_engines_on_the_hosts_network_are_kept_apart_and_told_when_nodes_run_out(spare: Site) -> None:
    """Field case C49: two resources with the same ports, on too few nodes and then on enough."""
    store = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca", "hostNetwork": "Required"}}
    nodes = [f"{spare.namespace}-node-{number}" for number in range(4)]
    with scheduled(spare.server), spare.operator(), pods_become_ready(spare, scheduled=True):
        add_node(spare, nodes[0])
        for name in ("llama", "qwen"):
            spare.apply(resource(name, kvStore=store))
        for name in ("llama", "qwen"):
            told = spare.wait_condition(name, "Degraded", "True", "PodFailing", seconds=60)
            assert "free ports" in told["message"], told
        for node in nodes[1:]:
            add_node(spare, node)
        for name in ("llama", "qwen"):
            spare.wait_condition(name, "Ready", "True", seconds=90)
        engines = [pod for pod in spare.must("GET", spare.path("pods"))["items"] if is_engine(pod)]
        assert sorted(pod["spec"]["nodeName"] for pod in engines) == nodes
        for name in ("llama", "qwen"):
            spare.delete("dinf", name)
        eventually(lambda: not names(spare), "their pods are gone", 60)
    for node in nodes:
        spare.must("DELETE", f"/api/v1/nodes/{node}")


def is_engine(pod: Json) -> bool:
    return pod["metadata"]["labels"][ROLE] in ("prefill", "decode")


def test_a_change_of_one_role_replaces_the_pods_of_that_role_alone(spare: Site) -> None:
    """Field case C32: decode's image, then a variable of prefill, then both back. Pods are replaced, none lacks."""
    with spare.operator(), pods_become_ready(spare):
        wish(spare, 1, 2)
        spare.wait_condition("llama", "Ready", "True", seconds=60)
        counts = {"prefill": {"replicas": 1}, "decode": {"replicas": 2}}
        image = {"decode": {"replicas": 2, "image": "engine:other"}}
        variable = {"prefill": {"replicas": 1, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}}
        for change, touched in ((image, {"decode"}), ({**image, **variable}, {"prefill"}), ({}, {"prefill", "decode"})):
            before = names(spare)
            spare.apply(resource("llama", **{**counts, **change}))
            spare.wait_condition("llama", "Ready", "True", seconds=90)
            gone = {name.split("-")[1] for name in before - names(spare)}
            assert gone == touched, change
            assert pods(spare) == {"prefill": 1, "decode": 2}
            body = spare.live("dinf", "llama")
            assert body["status"]["observedGeneration"] == body["metadata"]["generation"]
