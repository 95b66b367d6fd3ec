"""Things that work but deserve a look. They are shown in status and stop nothing."""

from collections.abc import Iterator

from disagg_operator.api.engine import Device
from disagg_operator.api.names import ENGINE_ROLES, Component
from disagg_operator.api.resource import DisaggregatedInference, NetworkPolicyMode, Spec
from disagg_operator.build.memory import derive_memory, read_amount
from disagg_operator.build.quantities import format_bytes
from disagg_operator.build.roles import needs_host_network, role_spec
from disagg_operator.build.store_config import derive_store_config
from disagg_operator.build.transfer import is_our_connector

_MAX_HINTS = 32
_MAX_LENGTH = 1024


def find_hints(resource: DisaggregatedInference) -> tuple[str, ...]:
    """Hints for a resource without problems, in a fixed order, as short and as few as status takes."""
    hints = ["spec.paused: rollouts are held until it is false"] if resource.spec.paused else []
    hints += [*derive_store_config(resource).hints, *_find_model_hints(resource.spec)]
    for role in ENGINE_ROLES:
        hints += _find_role_hints(resource, role)
    hints += [*_find_geometry_hints(resource.spec), *_find_policy_hints(resource), *_find_ratio_hints(resource.spec)]
    return tuple(hint[:_MAX_LENGTH] for hint in hints[:_MAX_HINTS])


def _find_model_hints(spec: Spec) -> Iterator[str]:
    if spec.model.token_secret_ref is not None and not spec.model.uri.startswith("hf://"):
        yield "spec.model.tokenSecretRef: has no effect; only hf:// models are downloaded with a token"


def _find_role_hints(resource: DisaggregatedInference, role: Component) -> Iterator[str]:
    spec, wish = resource.spec, role_spec(resource.spec, role)
    path = f"spec.{role}"
    if not is_our_connector(wish.kv_transfer_config or {}):
        yield (
            f"{path}.kvTransferConfig: names another connector than ours; whether KV is shared, and whether a lost "
            "store fails requests, is up to that one"
        )
    requested = read_amount(wish.resources.requests, "memory")
    needed = derive_memory(resource, role)
    if requested is not None and requested < needed:
        yield (
            f"{path}.resources.requests.memory: {format_bytes(requested)} is below the {format_bytes(needed)} that "
            "segments, buffers, shared memory and the engine are expected to take"
        )
    elif requested is None and spec.engine.device is Device.CPU and not (wish.resources.limits or {}).get("memory"):
        yield (
            f"{path}.resources.requests.memory: derived as {format_bytes(needed)}, without the model's weights, whose "
            "size is not known; on CPUs they are in memory, so set a request that holds them too"
        )
    if needs_host_network(resource) and wish.rollout.max_unavailable in {0, "0%"}:
        yield (
            f"{path}.rollout.maxUnavailable: with the node's network an engine has its node for itself, so a rollout "
            "needs a free node; set maxUnavailable to 1 where there is none"
        )


def _find_policy_hints(resource: DisaggregatedInference) -> Iterator[str]:
    if needs_host_network(resource) and resource.spec.network_policy is NetworkPolicyMode.ENABLED:
        yield (
            "spec.kvStore.rdma.hostNetwork: NetworkPolicies cannot tell engines on the node's network from others, so "
            "the store's servers take connections from the whole cluster, and no policy guards the engines"
        )


def _find_ratio_hints(spec: Spec) -> Iterator[str]:
    is_scaled = any(role_spec(spec, role).scaling is not None for role in ENGINE_ROLES)
    if spec.scaling is not None and spec.scaling.ratio is not None and not is_scaled:
        yield "spec.scaling.ratio: has no effect; it holds what scalers ask for, and no role has scaling"


def _find_geometry_hints(spec: Spec) -> Iterator[str]:
    shapes = {
        role: (role_spec(spec, role).parallelism.tensor, role_spec(spec, role).parallelism.pipeline)
        for role in ENGINE_ROLES
    }
    if shapes[Component.PREFILL] != shapes[Component.DECODE]:
        told = " and ".join(f"{role} has tensor {t}, pipeline {p}" for role, (t, p) in shapes.items())
        yield f"spec.decode.parallelism: {told}; KV of one is a miss for the other, so decode recomputes prompts"
