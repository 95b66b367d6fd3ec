"""Who reaches whom, judged by the evaluator: the matrix of all parts, clients and strangers."""

import pytest
from disagg_operator.api.names import (
    PORT_HTTP,
    PORT_MASTER_ADMIN,
    PORT_MASTER_RPC,
    PORT_METADATA,
    PORT_ROUTER_ADMIN,
    Component,
    object_labels,
)
from disagg_operator.build.engine_pod import worker_role
from disagg_operator.build.inputs import ClusterFacts, Manifest
from unit.build.netpol import Pod, admits
from unit.build.samples import FACTS, build, make

NAMESPACE = "team-a"
TRANSFER_PORT = 15417  # any port that Mooncake may choose


def part(component: Component, owner: str = "llama", namespace: str = NAMESPACE) -> Pod:
    return Pod(namespace, object_labels(owner, component))


PREFILL, DECODE = part(Component.PREFILL), part(Component.DECODE)
MASTER, METADATA, ROUTER = part(Component.MASTER), part(Component.METADATA), part(Component.ROUTER)
WORKER = Pod(
    NAMESPACE, {"inference.disagg.io/name": "llama", "inference.disagg.io/role": worker_role(Component.DECODE)}
)
STRANGER = Pod(NAMESPACE, {"app": "shell"})
OUTSIDER = Pod("other", {"app": "shell"})
OTHER_ENGINE = part(Component.PREFILL, owner="qwen")
OPERATOR = Pod("disagg-system", {"app.kubernetes.io/name": "disaggregated-inference-operator"})
PROMETHEUS = Pod("monitoring", {"app.kubernetes.io/name": "prometheus"})

REACHES = [
    (STRANGER, ROUTER, PORT_HTTP),
    (OUTSIDER, ROUTER, PORT_HTTP),
    (ROUTER, PREFILL, PORT_HTTP),
    (ROUTER, DECODE, PORT_HTTP),
    (PREFILL, MASTER, PORT_MASTER_RPC),
    (DECODE, MASTER, PORT_MASTER_ADMIN),
    (WORKER, MASTER, PORT_MASTER_RPC),
    (DECODE, METADATA, PORT_METADATA),
    (DECODE, PREFILL, TRANSFER_PORT),
    (PREFILL, DECODE, TRANSFER_PORT),
    (WORKER, PREFILL, TRANSFER_PORT),
    (PREFILL, WORKER, TRANSFER_PORT),
    (OPERATOR, MASTER, PORT_MASTER_ADMIN),
    (OPERATOR, ROUTER, PORT_ROUTER_ADMIN),
    (PROMETHEUS, MASTER, PORT_MASTER_ADMIN),
    (PROMETHEUS, DECODE, PORT_HTTP),
    (PROMETHEUS, ROUTER, PORT_ROUTER_ADMIN),
]
STOPPED = [
    *[
        (who, MASTER, port)
        for who in (STRANGER, OUTSIDER, OTHER_ENGINE, ROUTER)
        for port in (PORT_MASTER_RPC, 9003, 9004)
    ],
    *[(who, METADATA, PORT_METADATA) for who in (STRANGER, OUTSIDER, OTHER_ENGINE, ROUTER, OPERATOR, PROMETHEUS)],
    *[
        (who, PREFILL, port)
        for who in (STRANGER, OUTSIDER, OTHER_ENGINE, MASTER)
        for port in (PORT_HTTP, TRANSFER_PORT)
    ],
    (ROUTER, PREFILL, TRANSFER_PORT),
    (PROMETHEUS, PREFILL, TRANSFER_PORT),
    (OPERATOR, MASTER, PORT_MASTER_RPC),
    (STRANGER, ROUTER, PORT_ROUTER_ADMIN),
    (OUTSIDER, ROUTER, PORT_ROUTER_ADMIN),
    (part(Component.ROUTER, namespace="other"), PREFILL, PORT_HTTP),
    (part(Component.PREFILL, namespace="other"), MASTER, PORT_MASTER_RPC),
]


def policies(spec: dict[str, object] | None = None, facts: ClusterFacts = FACTS) -> list[Manifest]:
    children = build(make({"kvStore": {"metadata": {"type": "HTTP"}}, **(spec or {})}), facts).children
    return [child for child in children if child["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(("source", "target", "port"), REACHES)
def test_parts_reach_what_they_need(source: Pod, target: Pod, port: int) -> None:
    assert admits(policies(), source, target, port)


@pytest.mark.parametrize(("source", "target", "port"), STOPPED)
def test_nobody_reaches_anything_else(source: Pod, target: Pod, port: int) -> None:
    """Field case C95: whoever reaches master or metadata can wipe the cache."""
    assert not admits(policies(), source, target, port)


def test_without_prometheus_nobody_scrapes_engines() -> None:
    facts = ClusterFacts(operator_namespace="disagg-system")
    assert not admits(policies(facts=facts), PROMETHEUS, DECODE, PORT_HTTP)


def test_clients_of_a_shared_master_may_transfer_but_not_ask() -> None:
    shared = policies({"kvStore": {"master": {"external": {"address": "mc.ops.svc:50051"}}}})
    foreign = part(Component.DECODE, owner="qwen", namespace="team-b")
    assert admits(shared, foreign, PREFILL, TRANSFER_PORT)
    assert not admits(shared, foreign, PREFILL, PORT_HTTP)


def test_disabled_makes_none() -> None:
    assert policies({"networkPolicy": "Disabled"}) == []


def test_the_evaluator_follows_the_reference() -> None:
    def policy(**spec: object) -> Manifest:
        return {"metadata": {"namespace": NAMESPACE}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"], **spec}}

    assert admits([], STRANGER, MASTER, 1), "without policies everything is let in"
    assert not admits([policy()], STRANGER, MASTER, 1), "a policy without rules lets nothing in"
    assert admits([policy(ingress=[{}])], OUTSIDER, MASTER, 1), "an empty rule lets everything in"
    assert admits([policy(policyTypes=["Egress"])], OUTSIDER, MASTER, 1), "egress rules do not judge ingress"
    own: list[Manifest] = [{"from": [{"podSelector": {}}]}]
    assert admits([policy(ingress=own)], STRANGER, MASTER, 1)
    assert not admits([policy(ingress=own)], OUTSIDER, MASTER, 1), "podSelector alone means this namespace"
    udp = [{"ports": [{"protocol": "UDP", "port": 1}]}]
    assert not admits([policy(ingress=udp)], STRANGER, MASTER, 1)
    assert admits([policy(), policy(ingress=[{}])], STRANGER, MASTER, 1), "policies add up"


def test_engines_on_the_nodes_network_are_not_shut_out() -> None:
    """Their connections come from the node's address, which no selector of pods matches."""
    rdma = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca", "hostNetwork": "Required"}}
    resource = make({"kvStore": {**rdma, "metadata": {"type": "HTTP"}}})
    desired = build(resource)
    node = Pod("", {})
    opened = [child for child in desired.children if child["kind"] == "NetworkPolicy"]
    assert admits(opened, node, MASTER, PORT_MASTER_RPC)
    assert admits(opened, node, METADATA, PORT_METADATA)
    assert not admits(opened, node, MASTER, 9004)
    assert any("take connections from the whole cluster" in hint for hint in desired.hints)
