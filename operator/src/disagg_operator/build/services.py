"""The Services: one stable name for each part that others speak to."""

from typing import Any

from disagg_operator.api.kvstore import MetadataType
from disagg_operator.api.names import (
    PORT_ETCD,
    PORT_HTTP,
    PORT_MASTER_ADMIN,
    PORT_MASTER_RPC,
    PORT_METADATA,
    Component,
    child_name,
    selector_labels,
)
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object


def build_engine_service(context: Context, role: Component) -> Manifest:
    """A role's engines as a whole. The router speaks to single pods; this is its way out without discovery."""
    return _build_service(context, role, ports=[_port("http", PORT_HTTP)])


def build_master_service(context: Context) -> Manifest | None:
    """The master's name, which outlives its pod's address. None for somebody else's master."""
    if context.spec.kv_store.master.external:
        return None
    ports = [_port("rpc", PORT_MASTER_RPC), _port("admin", PORT_MASTER_ADMIN)]
    return _build_service(context, Component.MASTER, ports=ports)


def build_metadata_service(context: Context) -> Manifest | None:
    """The metadata service's name. None where clients ask each other or somebody else's service."""
    metadata = context.spec.kv_store.metadata
    if metadata.external or metadata.type is MetadataType.P2P:
        return None
    port = _port("etcd", PORT_ETCD) if metadata.type is MetadataType.ETCD else _port("http", PORT_METADATA)
    return _build_service(context, Component.METADATA, ports=[port])


def build_router_service(context: Context) -> Manifest:
    """What clients speak to. The only Service that may be reached from outside the cluster."""
    wish = context.spec.router.service
    service = _build_service(
        context,
        Component.ROUTER,
        type=wish.type.value,
        ports=[{"name": "http", "port": wish.port, "targetPort": "http", "protocol": "TCP"}],
    )
    if wish.annotations:
        service["metadata"]["annotations"] = dict(wish.annotations)
    return service


def _build_service(context: Context, component: Component, *, ports: list[Manifest], **fields: Any) -> Manifest:
    spec = {"type": "ClusterIP", "selector": selector_labels(context.name, component), "ports": ports, **fields}
    return build_object(context, "v1", "Service", child_name(context.name, component), component, spec=spec)


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
