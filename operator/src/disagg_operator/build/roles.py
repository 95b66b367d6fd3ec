"""What a role's engines are, once the shared part of the resource and the role's own part are put together."""

from typing import Any

from disagg_operator.api.base import EnvVar
from disagg_operator.api.engine import Device, RoleSpec
from disagg_operator.api.kvstore import HostNetwork
from disagg_operator.api.names import Component
from disagg_operator.api.resource import DisaggregatedInference, Spec
from disagg_operator.build.inputs import Context, Manifest


def role_spec(spec: Spec, role: Component) -> RoleSpec:
    """The part of the resource that describes one role."""
    return spec.prefill if role is Component.PREFILL else spec.decode


def spans_nodes(role: RoleSpec) -> bool:
    """Whether one replica is a group of pods, which a LeaderWorkerSet keeps, and not one pod of a Deployment."""
    return role.parallelism.nodes > 1


def derive_replicas(role: RoleSpec) -> int:
    """Replicas of a role that nothing has scaled yet: as written, else 1 or what its autoscaler begins with."""
    if role.scaling is not None:
        return max(1, role.scaling.min_replicas)
    return 1 if role.replicas is None else role.replicas


def derive_image(context: Context, role: Component) -> str:
    """Engine image of a role: its own, the shared one, or the one recorded for the device."""
    images = context.pins.images
    recorded = images.engine_cpu if context.spec.engine.device is Device.CPU else images.engine_cuda
    return role_spec(context.spec, role).image or context.spec.engine.image or recorded


def count_pod_ranks(role: RoleSpec) -> int:
    """Ranks in one pod. Each lends one segment to the store."""
    parallelism = role.parallelism
    return max(1, parallelism.tensor * parallelism.pipeline * parallelism.data // parallelism.nodes)


def count_replica_ranks(role: RoleSpec) -> int:
    """Ranks in one replica, which is one pod unless it spans nodes."""
    return count_pod_ranks(role) * role.parallelism.nodes


def derive_env(spec: Spec, role: Component) -> dict[str, Manifest]:
    """The user's environment of a role's engines by name; the role's own entry wins over the shared one."""
    entries = [*spec.engine.env, *role_spec(spec, role).env]
    return {entry.name: dump_env(entry) for entry in entries}


def dump_env(entry: EnvVar) -> Manifest:
    """An environment variable as a container has it."""
    dumped: dict[str, Any] = {"name": entry.name}
    if entry.value_from is not None:
        dumped["valueFrom"] = entry.value_from
    else:
        dumped["value"] = entry.value or ""
    return dumped


def needs_host_network(resource: DisaggregatedInference) -> bool:
    """Whether engine pods use the node's network."""
    rdma = resource.spec.kv_store.rdma
    return rdma is not None and rdma.host_network is HostNetwork.REQUIRED
