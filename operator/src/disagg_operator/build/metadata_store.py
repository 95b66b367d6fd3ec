"""The transfer engine's metadata service, where the resource wants one of its own: HTTP, or an etcd."""

from typing import Final

from disagg_operator.api.kvstore import MetadataType
from disagg_operator.api.names import PORT_ETCD, PORT_METADATA, Component, child_name, object_labels, selector_labels
from disagg_operator.build.containers import build_pod_spec, dump_resources, fill_requests, scratch_volume
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.memory import SMALL_DISK
from disagg_operator.build.objects import build_object
from disagg_operator.build.quantities import format_bytes
from disagg_operator.build.security import build_container_security

METADATA: Final = "metadata"
_DATA: Final = "/var/lib/etcd"


def build_metadata_store(context: Context) -> Manifest | None:
    """The service's Deployment. None where clients ask each other or somebody else's service."""
    metadata = context.spec.kv_store.metadata
    if metadata.external or metadata.type not in {MetadataType.HTTP, MetadataType.ETCD}:
        return None
    container = _build_etcd(context) if metadata.type is MetadataType.ETCD else _build_http(context)
    requests = {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": format_bytes(SMALL_DISK)}
    container["resources"] = fill_requests(dump_resources(metadata.resources), requests)
    container["securityContext"] = build_container_security()
    volumes = [scratch_volume(mount["name"]) for mount in container["volumeMounts"]]
    template = {
        "metadata": {"labels": object_labels(context.name, Component.METADATA)},
        "spec": build_pod_spec(
            context,
            Component.METADATA,
            terminationGracePeriodSeconds=10,
            containers=[container],
            volumes=volumes,
        ),
    }
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": selector_labels(context.name, Component.METADATA)},
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": context.spec.revision_history_limit,
        "template": template,
    }
    name = child_name(context.name, Component.METADATA)
    return build_object(context, "apps/v1", "Deployment", name, Component.METADATA, spec=spec)


def _build_http(context: Context) -> Manifest:
    any_address = "::" if context.facts.ip_family == "IPv6" else "0.0.0.0"  # noqa: S104  # a pod's only address
    probe = {"tcpSocket": {"port": "http"}}
    return {
        "name": METADATA,
        "image": context.pins.images.store,
        "command": ["python3", "-m", "mooncake.http_metadata_server"],
        "args": ["--host", any_address, "--port", str(PORT_METADATA)],
        "ports": [{"name": "http", "containerPort": PORT_METADATA, "protocol": "TCP"}],
        "readinessProbe": {**probe, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3},
        "livenessProbe": {**probe, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108  # the pod's own volume
    }


def _build_etcd(context: Context) -> Manifest:
    """One etcd without a disk: what is in it, clients write again when they start."""
    any_address = "[::]" if context.facts.ip_family == "IPv6" else "0.0.0.0"  # noqa: S104  # a pod's only address
    peer = "http://127.0.0.1:2380"
    health = {"httpGet": {"path": "/health", "port": "etcd"}}
    host = child_name(context.name, Component.METADATA)
    return {
        "name": METADATA,
        "image": context.spec.kv_store.metadata.image,
        "command": ["etcd"],
        "args": [
            "--name=metadata",
            f"--data-dir={_DATA}",
            f"--listen-client-urls=http://{any_address}:{PORT_ETCD}",
            f"--advertise-client-urls=http://{host}.{context.namespace}.svc:{PORT_ETCD}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=metadata={peer}",
        ],
        "ports": [{"name": "etcd", "containerPort": PORT_ETCD, "protocol": "TCP"}],
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "volumeMounts": [{"name": "data", "mountPath": _DATA}],
    }
