"""NetworkPolicies: who may speak to whom. The master and the metadata service ask nobody for a password.

Only ingress is limited. Engines fetch models from hubs and claims that nobody can list beforehand.
"""

from typing import Any, Final

from disagg_operator.api.kvstore import MetadataType
from disagg_operator.api.names import (
    ENGINE_ROLES,
    LABEL_NAME,
    LABEL_ROLE,
    PORT_ETCD,
    PORT_HTTP,
    PORT_MASTER_ADMIN,
    PORT_MASTER_RPC,
    PORT_METADATA,
    PORT_ROUTER_ADMIN,
    Component,
    child_name,
    selector_labels,
)
from disagg_operator.api.resource import NetworkPolicyMode
from disagg_operator.build.engine_pod import worker_role
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object
from disagg_operator.build.roles import needs_host_network

# Prometheus is known by the label that its operator gives, in whatever namespace it runs.
_PROMETHEUS: Final[Manifest] = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}


def build_network_policies(context: Context) -> list[Manifest]:
    """The policies of all parts that this resource has."""
    if context.spec.network_policy is NetworkPolicyMode.DISABLED:
        return []
    policies = [build_engine_policy(context), build_router_policy(context)]
    if not context.spec.kv_store.master.external:
        policies.append(build_master_policy(context))
    metadata = context.spec.kv_store.metadata
    if not metadata.external and metadata.type is not MetadataType.P2P:
        policies.append(build_metadata_policy(context))
    return policies


def build_engine_policy(context: Context) -> Manifest:
    """Engines take requests from the router, and KV transfers from each other on ports that Mooncake chooses."""
    ingress = [
        _allow([_pods(context, Component.ROUTER)], PORT_HTTP),
        _allow([_engines(context)]),
        *_allow_prometheus(context, PORT_HTTP),
    ]
    if context.spec.kv_store.master.external:
        # A shared master brings clients whose pods are not known here. Requests stay closed to them.
        ranges = [{"port": 1024, "endPort": PORT_HTTP - 1}, {"port": PORT_HTTP + 1, "endPort": 65535}]
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", **span} for span in ranges]})
    name = f"{context.name}-engines"
    return _build_policy(context, name, None, _engines(context)["podSelector"], ingress)


def build_router_policy(context: Context) -> Manifest:
    """The router takes requests from everywhere: that is what it is for."""
    ingress = [
        _allow([], PORT_HTTP),
        *_allow_operator(context, PORT_ROUTER_ADMIN),
        *_allow_prometheus(context, PORT_ROUTER_ADMIN),
    ]
    return _build_part_policy(context, Component.ROUTER, ingress)


def build_master_policy(context: Context) -> Manifest:
    """The master serves engines; the operator and Prometheus may read its front."""
    ingress = [
        _allow(_clients(context), PORT_MASTER_RPC, PORT_MASTER_ADMIN),
        *_allow_operator(context, PORT_MASTER_ADMIN),
        *_allow_prometheus(context, PORT_MASTER_ADMIN),
    ]
    return _build_part_policy(context, Component.MASTER, ingress)


def build_metadata_policy(context: Context) -> Manifest:
    """The metadata service serves engines alone."""
    etcd = context.spec.kv_store.metadata.type is MetadataType.ETCD
    ingress = [_allow(_clients(context), PORT_ETCD if etcd else PORT_METADATA)]
    return _build_part_policy(context, Component.METADATA, ingress)


def _build_part_policy(context: Context, component: Component, ingress: list[Manifest]) -> Manifest:
    selector = {"matchLabels": selector_labels(context.name, component)}
    return _build_policy(context, child_name(context.name, component), component, selector, ingress)


def _build_policy(
    context: Context, name: str, component: Component | None, selector: Manifest, ingress: list[Manifest]
) -> Manifest:
    spec: dict[str, Any] = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
    return build_object(context, "networking.k8s.io/v1", "NetworkPolicy", name, component, spec=spec)


def _pods(context: Context, component: Component) -> Manifest:
    return {"podSelector": {"matchLabels": selector_labels(context.name, component)}}


def _engines(context: Context) -> Manifest:
    """All engine pods of the resource, of both roles, leaders and workers."""
    roles = [text for role in ENGINE_ROLES for text in (role.value, worker_role(role))]
    selector = {
        "matchLabels": {LABEL_NAME: context.name},
        "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": roles}],
    }
    return {"podSelector": selector}


def _clients(context: Context) -> list[Manifest]:
    """Who may speak to the store's servers: engines.

    With the node's network no selector tells them from others, and shutting them out would shut the store: everybody
    may, and a hint says so.
    """
    return [] if needs_host_network(context.resource) else [_engines(context)]


def _allow_operator(context: Context, port: int) -> list[Manifest]:
    namespace = context.facts.operator_namespace
    if not namespace:
        return []
    return [_allow([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}], port)]


def _allow_prometheus(context: Context, port: int) -> list[Manifest]:
    return [_allow([_PROMETHEUS], port)] if context.facts.has_pod_monitor else []


def _allow(peers: list[Manifest], *ports: int) -> Manifest:
    """One ingress rule. No peers: anybody; no ports: all ports."""
    rule: Manifest = {}
    if peers:
        rule["from"] = peers
    if ports:
        rule["ports"] = [{"protocol": "TCP", "port": port} for port in ports]
    return rule
