"""Judges resources: amounts parse, limits hold what the operator puts into a pod, devices are asked for."""

from collections.abc import Iterator
from typing import Any

from mooncake_store_connector.problems import ConfigError, Problem
from mooncake_store_connector.sizes import parse_size

from disagg_operator.api.base import Resources
from disagg_operator.api.engine import Device
from disagg_operator.api.kvstore import Protocol
from disagg_operator.api.names import ENGINE_ROLES, Component
from disagg_operator.api.resource import DisaggregatedInference, Spec
from disagg_operator.build.memory import derive_store_memory, read_amount
from disagg_operator.build.quantities import format_bytes, parse_quantity
from disagg_operator.build.resources import asks_for_rdma
from disagg_operator.build.roles import count_pod_ranks, role_spec, spans_nodes
from disagg_operator.build.store_config import derive_store_config

_GPU = "nvidia.com/gpu"


def find_resource_problems(resource: DisaggregatedInference) -> list[Problem]:
    """What is wrong with the resources of all parts."""
    spec = resource.spec
    amounts: dict[str, Any] = {"spec.engine.sharedMemorySize": spec.engine.shared_memory_size}
    if spec.model.cache is not None:
        amounts["spec.model.cache.size"] = spec.model.cache.size
    problems = [p for path, value in amounts.items() if value is not None for p in _judge_amount(path, value)]
    problems += _judge_body_size(spec)
    parts = {f"spec.{role}.resources": role_spec(spec, role).resources for role in ENGINE_ROLES}
    parts |= {
        "spec.router.resources": spec.router.resources,
        "spec.kvStore.master.resources": spec.kv_store.master.resources,
        "spec.kvStore.metadata.resources": spec.kv_store.metadata.resources,
    }
    for path, resources in parts.items():
        problems += _judge_resources(path, resources)
    if problems:
        return problems  # what follows reckons with amounts
    for role in ENGINE_ROLES:
        problems += [*_judge_memory(resource, role), *_judge_devices(resource, role)]
    return problems


def _judge_amount(path: str, value: int | str) -> Iterator[Problem]:
    try:
        if parse_quantity(value) >= 0:
            return
    except ValueError:
        pass
    yield Problem(path, f"found {value!r}", "write a quantity such as 500m, 4 or 16Gi")


def _judge_body_size(spec: Spec) -> list[Problem]:
    path = "spec.router.maxBodySize"
    try:
        size = parse_size(spec.router.max_body_size, path)
    except ConfigError as error:
        return error.problems
    return [] if size else [Problem(path, "found 0", "write the largest request that you want to take, such as 32Mi")]


def _judge_resources(path: str, resources: Resources) -> list[Problem]:
    fields = {"requests": resources.requests or {}, "limits": resources.limits or {}}
    problems = [
        problem
        for field, amounts in fields.items()
        for name, value in amounts.items()
        for problem in _judge_amount(f"{path}.{field}.{name}", value)
    ]
    if problems:
        return problems
    for name, value in fields["requests"].items():
        limit = fields["limits"].get(name)
        if limit is not None and parse_quantity(value) > parse_quantity(limit):
            problems.append(Problem(f"{path}.requests.{name}", f"{value} is above the limit {limit}", "lower it"))
        elif limit is None and "/" in name:
            remedy = f"write it under limits; Kubernetes wants a limit for {name}"
            problems.append(Problem(f"{path}.requests.{name}", "a device without a limit", remedy))
    return problems


def _judge_memory(resource: DisaggregatedInference, role: Component) -> Iterator[Problem]:
    """A limit below what ranks lend to the store is an OOM kill that waits for the first full cache."""
    wish = role_spec(resource.spec, role)
    path, limits = f"spec.{role}.resources.limits.memory", wish.resources.limits
    engine = _find_engine_overlay(wish.template)
    overlay = engine.get("resources")
    if isinstance(overlay, dict) and isinstance(overlay.get("limits"), dict) and "memory" in overlay["limits"]:
        path, limits = f"spec.{role}.template: container engine: resources.limits.memory", overlay["limits"]
    try:
        limit, needed = read_amount(limits, "memory"), derive_store_memory(resource, role)
        config = derive_store_config(resource)
    except (ConfigError, ValueError):
        return  # told elsewhere, by its own path
    if limit is not None and limit < needed:
        ranks = count_pod_ranks(wish)
        told = (
            f"{format_bytes(limit)} cannot hold {ranks} ranks x ({format_bytes(config.segment_size)} segment + "
            f"{format_bytes(config.buffer_size)} buffer) = {format_bytes(needed)}"
        )
        remedy = f"set it well above {format_bytes(needed)}, or make spec.kvStore.segmentSize smaller"
        yield Problem(path, told, remedy)


def _find_engine_overlay(template: Any) -> dict[str, Any]:
    spec = template.get("spec") if isinstance(template, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    entries = containers if isinstance(containers, list) else []
    return next((entry for entry in entries if isinstance(entry, dict) and entry.get("name") == "engine"), {})


def _judge_devices(resource: DisaggregatedInference, role: Component) -> Iterator[Problem]:
    spec, wish = resource.spec, role_spec(resource.spec, role)
    path, ranks = f"spec.{role}.resources.limits", count_pod_ranks(wish)
    gpus = read_amount(wish.resources.limits, _GPU)
    if spec.engine.device is Device.CUDA and gpus is not None and gpus < ranks:
        remedy = f"set {ranks}, one for each of the pod's ranks, or remove it to have it derived"
        yield Problem(f"{path}.{_GPU}", f"found {gpus} for {ranks} ranks", remedy)
    if _lacks_rdma_device(resource, role):
        remedy = "set spec.kvStore.rdma.resourceName to your device plugin's resource (such as rdma/hca), or use tcp"
        yield Problem(
            "spec.kvStore.protocol", f"{_protocol(resource)}, but no RDMA device is asked for the {role} pods", remedy
        )


def _lacks_rdma_device(resource: DisaggregatedInference, role: Component) -> bool:
    if _protocol(resource) not in {Protocol.RDMA, Protocol.EFA}:
        return False
    wish = role_spec(resource.spec, role)
    rdma = resource.spec.kv_store.rdma
    is_named = rdma is not None and bool(rdma.resource_name)
    return not (is_named or asks_for_rdma(wish.resources) or _mounts_device(wish.template))


def _mounts_device(template: Any) -> bool:
    """Whether a pod template brings devices by itself: a host path under /dev, or a resource claim."""
    spec = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(spec, dict):
        return False
    volumes = spec.get("volumes") if isinstance(spec.get("volumes"), list) else []
    paths = [str((v.get("hostPath") or {}).get("path", "")) for v in volumes or [] if isinstance(v, dict)]
    return bool(spec.get("resourceClaims")) or any(path.startswith("/dev") for path in paths)


def _protocol(resource: DisaggregatedInference) -> str:
    try:
        return derive_store_config(resource).protocol
    except ConfigError:
        return resource.spec.kv_store.protocol.value


def is_over_nodes(spec: Spec) -> list[Component]:
    """Roles whose replicas span more than one pod."""
    return [role for role in ENGINE_ROLES if spans_nodes(role_spec(spec, role))]
