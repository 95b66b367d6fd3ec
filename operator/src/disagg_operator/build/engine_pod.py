"""The pod template of prefill and decode: one `vllm serve`, after an init container that writes its store config."""

import copy
from typing import Any, Final

from disagg_operator.api.engine import Device
from disagg_operator.api.kvstore import Protocol
from disagg_operator.api.names import (
    ANNOTATION_CONFIG_HASH,
    ANNOTATION_RESTART,
    LABEL_FOREIGN_ROLE,
    LABEL_KV_REVISION,
    LABEL_REVISION,
    LABEL_ROLE,
    PORT_HTTP,
    Component,
    config_map_name,
    object_labels,
)
from disagg_operator.build.config_map import CONFIG_KEY
from disagg_operator.build.containers import POD_IP_ENV, build_pod_spec, dump_resources, fill_requests, scratch_volume
from disagg_operator.build.digests import derive_revision, digest
from disagg_operator.build.engine_args import build_engine_args
from disagg_operator.build.engine_probes import build_probes
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.memory import (
    CPU_KV_CACHE_ENV,
    DEFAULT_CPU_KV_CACHE_GIB,
    SMALL_DISK,
    derive_disk,
    derive_memory,
)
from disagg_operator.build.model_source import ModelSource, build_model_source
from disagg_operator.build.objects import compact
from disagg_operator.build.overlay import merge_template
from disagg_operator.build.quantities import format_bytes
from disagg_operator.build.resources import asks_for_gpu
from disagg_operator.build.roles import count_pod_ranks, derive_env, derive_image, needs_host_network, role_spec
from disagg_operator.build.security import build_container_security
from disagg_operator.build.store_config import derive_master_health_url, derive_store_config

ENGINE: Final = "engine"
INIT: Final = "mooncake-config"
TEMPLATE_DIR: Final = "/etc/disagg"
CONFIG_DIR: Final = "/etc/mooncake"
# Every cache is below it: the root is read-only, this is a volume of the pod.
HOME: Final = "/tmp"  # noqa: S108
HASH_SEED: Final = "0"
MASTER_CALL_MILLISECONDS: Final = "2000"


def build_engine_template(context: Context, role: Component, kv_revision: str) -> Manifest:
    """Pod template of a role's engines."""
    source = build_model_source(context.spec.model)
    labels = object_labels(context.name, role) | {LABEL_KV_REVISION: kv_revision}
    annotations = {ANNOTATION_CONFIG_HASH: digest(derive_store_config(context.resource).values)}
    if context.spec.restart:
        annotations[ANNOTATION_RESTART] = context.spec.restart
    generated = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": _build_pod(context, role, source, kv_revision),
    }
    template = merge_template(generated, role_spec(context.spec, role).template or {})
    template["metadata"]["labels"][LABEL_REVISION] = derive_revision(template)
    return template


def build_worker_template(template: Manifest, role: Component) -> Manifest:
    """From a role's template, that of the pods beside the first one of a replica that spans nodes.

    They serve no HTTP, so no Service, router or probe may take them for engines: their role label says so.
    """
    worker = copy.deepcopy(template)
    labels = worker["metadata"]["labels"]
    labels[LABEL_ROLE] = labels["app.kubernetes.io/component"] = worker_role(role)
    labels.pop(LABEL_FOREIGN_ROLE, None)
    engine = next(container for container in worker["spec"]["containers"] if container["name"] == ENGINE)
    engine["args"].append("--headless")
    for field in ("startupProbe", "readinessProbe", "livenessProbe", "ports"):
        engine.pop(field, None)
    return worker


def worker_role(role: Component) -> str:
    """Role label of the pods beside the first one of a replica."""
    return f"{role}-worker"


def _build_pod(context: Context, role: Component, source: ModelSource, kv_revision: str) -> Manifest:
    host_network = needs_host_network(context.resource)
    return build_pod_spec(
        context,
        role,
        **compact(
            hostNetwork=host_network or None,
            # With the node's network a pod would otherwise ask the node's DNS, which knows no Services.
            dnsPolicy="ClusterFirstWithHostNet" if host_network else None,
        ),
        terminationGracePeriodSeconds=role_spec(context.spec, role).termination_grace_period_seconds,
        initContainers=[_build_init(context, role)],
        containers=[_build_engine(context, role, source, kv_revision)],
        volumes=_build_volumes(context, source),
    )


def _build_init(context: Context, role: Component) -> Manifest:
    """Adds this pod's own address to the config, and waits a bounded time for the master."""
    store = context.spec.kv_store
    args = ["prepare", "--template", f"{TEMPLATE_DIR}/{CONFIG_KEY}", "--output", f"{CONFIG_DIR}/{CONFIG_KEY}"]
    args += ["--wait-master", store.startup_wait]
    if store.interface:
        args += ["--interface", store.interface]
    if health := derive_master_health_url(context.resource):
        args += ["--master-health-url", health]
    return {
        "name": INIT,
        "image": derive_image(context, role),
        **_pull_policy(context),
        "command": ["python3", "-m", "mooncake_store_connector"],
        "args": args,
        "env": [POD_IP_ENV],
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": format_bytes(SMALL_DISK)},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": build_container_security(),
        "volumeMounts": [
            {"name": "config-template", "mountPath": TEMPLATE_DIR, "readOnly": True},
            {"name": "config", "mountPath": CONFIG_DIR},
            {"name": "tmp", "mountPath": HOME},
        ],
    }


def _build_engine(context: Context, role: Component, source: ModelSource, kv_revision: str) -> Manifest:
    wish = role_spec(context.spec, role)
    port: Manifest = {"name": "http", "containerPort": PORT_HTTP, "protocol": "TCP"}
    if needs_host_network(context.resource):
        port["hostPort"] = PORT_HTTP  # declared, so that the scheduler keeps engines that would clash apart
    capabilities = ["IPC_LOCK"] if context.spec.kv_store.rdma else []
    return {
        "name": ENGINE,
        "image": derive_image(context, role),
        **_pull_policy(context),
        "command": ["vllm", "serve"],
        "args": build_engine_args(context, role, source, kv_revision),
        "env": build_env(context, role, source),
        "ports": [port],
        "resources": derive_resources(context, role, source),
        "securityContext": build_container_security(*capabilities),
        **build_probes(wish),
        "volumeMounts": _build_mounts(source),
    }


def build_env(context: Context, role: Component, source: ModelSource) -> list[Manifest]:
    """Environment of the engine: the operator's, then the user's, which wins by name where it may."""
    generated = [
        POD_IP_ENV,
        {"name": "VLLM_HOST_IP", "value": "$(POD_IP)"},
        {"name": "MOONCAKE_CONFIG_PATH", "value": f"{CONFIG_DIR}/{CONFIG_KEY}"},
        # Block hashes must agree in all engines, or nothing that one stores is ever found by another.
        {"name": "PYTHONHASHSEED", "value": HASH_SEED},
        {"name": "HOME", "value": HOME},
        # Programs that ask who they are would search a number in /etc/passwd in vain.
        {"name": "USER", "value": ENGINE},
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        # A master that hangs would keep threads that save and load for Mooncake's 30 s a call.
        {"name": "MC_RPC_TIMEOUT_MS", "value": MASTER_CALL_MILLISECONDS},
        *source.env,
    ]
    if derive_store_config(context.resource).protocol == Protocol.TCP:
        # Where a node has RDMA devices the transfer engine would take them on its own.
        generated.append({"name": "MC_FORCE_TCP", "value": "1"})
    if context.facts.ip_family == "IPv6":
        generated.append({"name": "MC_USE_IPV6", "value": "1"})
    if context.spec.engine.device is Device.CPU:
        generated.append({"name": CPU_KV_CACHE_ENV, "value": str(DEFAULT_CPU_KV_CACHE_GIB)})
    merged = {entry["name"]: entry for entry in generated} | derive_env(context.spec, role)
    return list(merged.values())


def derive_resources(context: Context, role: Component, source: ModelSource) -> Manifest:
    """Resources of the engine: as written, the rest derived."""
    wish = role_spec(context.spec, role)
    written = dump_resources(wish.resources)
    limits: dict[str, Any] = dict(written.get("limits") or {})
    if context.spec.engine.device is Device.CUDA and not asks_for_gpu(wish.resources):
        limits["nvidia.com/gpu"] = str(count_pod_ranks(wish))
    rdma = context.spec.kv_store.rdma
    if rdma is not None and rdma.resource_name:
        limits.setdefault(rdma.resource_name, "1")
    derived = {
        "cpu": "1",
        "memory": format_bytes(derive_memory(context.resource, role)),
        "ephemeral-storage": format_bytes(derive_disk(source.cache_size)),
    }
    return fill_requests({**written, **compact(limits=limits)}, derived)


def _pull_policy(context: Context) -> Manifest:
    policy = context.spec.engine.image_pull_policy
    return compact(imagePullPolicy=policy.value if policy else None)


def _build_volumes(context: Context, source: ModelSource) -> list[Manifest]:
    size = context.spec.engine.shared_memory_size
    return [
        {
            "name": "config-template",
            "configMap": {
                "name": config_map_name(context.name),
                "items": [{"key": CONFIG_KEY, "path": CONFIG_KEY}],
            },
        },
        scratch_volume("config"),
        scratch_volume("tmp"),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}},
        *source.volumes,
    ]


def _build_mounts(source: ModelSource) -> list[Manifest]:
    return [
        {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
        {"name": "tmp", "mountPath": HOME},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        *source.mounts,
    ]
