"""The Mooncake master: one process that knows where each object lies. Its admin port has no lock, so it is shut in.

A second master beside the first would know nothing of its segments, so an update stops the old one first (Recreate).
"""

from typing import Final

from mooncake_store_connector.durations import parse_duration_ms

from disagg_operator.api.kvstore import MasterSpec
from disagg_operator.api.names import (
    PORT_MASTER_ADMIN,
    PORT_MASTER_RPC,
    Component,
    child_name,
    object_labels,
    selector_labels,
)
from disagg_operator.build.containers import build_pod_spec, dump_resources, fill_requests, scratch_volume
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.memory import SMALL_DISK
from disagg_operator.build.objects import build_object
from disagg_operator.build.overlay import merge_template
from disagg_operator.build.quantities import format_bytes
from disagg_operator.build.security import build_container_security
from disagg_operator.build.store_config import has_own_master

MASTER: Final = "master"
FRONT: Final = "admin-front"
# The front speaks to the master here, inside the pod alone.
PORT_INNER_ADMIN: Final = 9004
# An object costs the master about 1 KiB; this is room for some hundred thousand. docs/operations.md has the rule.
_MEMORY: Final = "512Mi"


def build_master(context: Context) -> Manifest | None:
    """The master's Deployment. None for somebody else's master."""
    if not has_own_master(context.resource):
        return None
    name = child_name(context.name, Component.MASTER)
    labels = selector_labels(context.name, Component.MASTER)
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": context.spec.revision_history_limit,
        "template": merge_template(_build_template(context), context.spec.kv_store.master.template or {}),
    }
    return build_object(context, "apps/v1", "Deployment", name, Component.MASTER, spec=spec)


def build_master_flags(wish: MasterSpec) -> list[str]:
    """Flags for what the user set. The master's own defaults are its own: no flag repeats them."""
    values = {
        "default_kv_lease_ttl": _milliseconds(wish.default_kv_lease_ttl, "defaultKvLeaseTtl"),
        "eviction_high_watermark_ratio": wish.eviction_high_watermark_ratio,
        "eviction_ratio": wish.eviction_ratio,
        "rpc_thread_num": wish.rpc_threads,
        "client_ttl": _seconds(wish.client_ttl, "clientTtl"),
    }
    return [f"--{flag}={value}" for flag, value in values.items() if value is not None]


def _milliseconds(duration: str | None, field: str) -> int | None:
    return None if duration is None else parse_duration_ms(duration, f"spec.kvStore.master.{field}")


def _seconds(duration: str | None, field: str) -> int | None:
    milliseconds = _milliseconds(duration, field)
    return None if milliseconds is None else max(1, -(-milliseconds // 1000))


def _build_template(context: Context) -> Manifest:
    return {
        "metadata": {"labels": object_labels(context.name, Component.MASTER)},
        "spec": build_pod_spec(
            context,
            Component.MASTER,
            terminationGracePeriodSeconds=10,
            containers=[_build_master_container(context), _build_front(context)],
            volumes=[scratch_volume("tmp")],
        ),
    }


def _build_master_container(context: Context) -> Manifest:
    wish = context.spec.kv_store.master
    any_address = "::" if context.facts.ip_family == "IPv6" else "0.0.0.0"  # noqa: S104  # a pod's only address
    requests = {"cpu": "100m", "memory": _MEMORY, "ephemeral-storage": format_bytes(SMALL_DISK)}
    return {
        "name": MASTER,
        "image": context.pins.images.store,
        "command": ["mooncake_master"],
        "args": [
            f"--rpc_address={any_address}",
            f"--rpc_port={PORT_MASTER_RPC}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={PORT_INNER_ADMIN}",
            "--logtostderr",
            *build_master_flags(wish),
        ],
        "ports": [{"name": "rpc", "containerPort": PORT_MASTER_RPC, "protocol": "TCP"}],
        "resources": fill_requests(dump_resources(wish.resources), requests),
        **_build_probes(),
        "securityContext": build_container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108  # the pod's own volume
    }


def _build_probes() -> Manifest:
    """Asked through the front, which answers 503 while `service_ready` is false. A loaded master may be slow."""
    health = {"httpGet": {"path": "/health", "port": PORT_MASTER_ADMIN}}
    return {
        "startupProbe": {**health, "periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 60},
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    }


def _build_front(context: Context) -> Manifest:
    """Passes GET of a few listed paths to the admin port and nothing else, whatever the cluster's network allows."""
    return {
        "name": FRONT,
        "image": context.pins.images.store,
        "command": ["haproxy", "-db", "-f", "/etc/disagg/admin-front.cfg"],
        "env": [
            {"name": "FRONT_PORT", "value": str(PORT_MASTER_ADMIN)},
            {"name": "MASTER_ADMIN_PORT", "value": str(PORT_INNER_ADMIN)},
        ],
        "ports": [{"name": "admin", "containerPort": PORT_MASTER_ADMIN, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "16Mi"},
            "limits": {"memory": "128Mi"},
        },
        "securityContext": build_container_security(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108  # the pod's own volume
    }
