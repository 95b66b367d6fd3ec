"""NetworkPolicies as a function: whether a connection is let in. Written from the API's reference, without a cluster.

A pod that no policy selects takes everything. A pod that policies select takes what at least one of their rules allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """One end of a connection, with the labels of its namespace."""

    namespace: str
    labels: dict[str, str]
    namespace_labels: dict[str, str] = field(default_factory=dict)


def admits(policies: Iterable[Manifest], source: Pod, target: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether `target` takes a connection from `source` on `port`."""
    selecting = [p for p in policies if _selects(p, target) and "Ingress" in p["spec"].get("policyTypes", ["Ingress"])]
    if not selecting:
        return True
    return any(
        _allows(policy, rule, source, port, protocol)
        for policy in selecting
        for rule in policy["spec"].get("ingress", [])
    )


def _selects(policy: Manifest, pod: Pod) -> bool:
    return bool(policy["metadata"]["namespace"] == pod.namespace) and matches(policy["spec"]["podSelector"], pod.labels)


def _allows(policy: Manifest, rule: Manifest, source: Pod, port: int, protocol: str) -> bool:
    # A rule without "from" is for everybody, one without "ports" for every port; empty lists mean the same.
    peers, ports = rule.get("from", []), rule.get("ports", [])
    is_peer = not peers or any(_is_peer(policy, peer, source) for peer in peers)
    return is_peer and (not ports or any(_is_port(entry, port, protocol) for entry in ports))


def _is_peer(policy: Manifest, peer: Manifest, source: Pod) -> bool:
    assert "ipBlock" not in peer, "the evaluator knows pods, not addresses"
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"], _labels_of_namespace(source)):
            return False
    elif source.namespace != policy["metadata"]["namespace"]:
        return False
    return matches(peer.get("podSelector", {}), source.labels)


def _labels_of_namespace(pod: Pod) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": pod.namespace, **pod.namespace_labels}


def _is_port(entry: Manifest, port: int, protocol: str) -> bool:
    if entry.get("protocol", "TCP") != protocol:
        return False
    first: int = entry.get("port", 0)
    last: int = entry.get("endPort", first)
    return "port" not in entry or first <= port <= last


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Whether a label selector selects these labels. An empty one selects everything."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_fits(expression, labels) for expression in selector.get("matchExpressions", []))


def _fits(expression: Manifest, labels: dict[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values", [])
    fits = {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return fits[operator]
