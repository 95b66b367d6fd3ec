"""Why a resource cannot be built: all that the API server's rules cannot say, found before any child is written."""

from collections.abc import Iterator

from mooncake_store_connector.problems import Problem

from disagg_operator.api.names import ENGINE_ROLES, Component
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.check_args import find_args_problems, find_pasted_tokens
from disagg_operator.build.check_env import find_entry_problems, find_env_problems
from disagg_operator.build.check_references import find_name_problems, find_reference_problems
from disagg_operator.build.check_resources import find_resource_problems, is_over_nodes
from disagg_operator.build.check_scaling import find_scaling_problems
from disagg_operator.build.check_template import (
    MASTER_RULES,
    ROUTER_RULES,
    engine_rules,
    find_template_problems,
    list_overlay_env,
)
from disagg_operator.build.inputs import ClusterFacts, Context, Pins
from disagg_operator.build.roles import derive_image, role_spec
from disagg_operator.build.store_config import find_store_problems
from disagg_operator.build.transfer import REFUSED_KV_ROLES

_KV_ROLES = ("kv_producer", "kv_consumer", "kv_both")


def find_problems(resource: DisaggregatedInference, pins: Pins, facts: ClusterFacts) -> tuple[Problem, ...]:
    """Every problem, in a fixed order; empty means that `build_desired` can build it with the same pins."""
    spec = resource.spec
    problems = [
        *find_name_problems(resource),
        *find_reference_problems(resource),
        *_find_image_problems(Context(resource, pins, facts)),
        *find_store_problems(resource),
        *find_args_problems(spec),
        *find_pasted_tokens(resource),
        *find_env_problems(spec),
        *find_resource_problems(resource),
        *_find_cluster_problems(resource, facts),
        *find_template_problems("spec.router.template", spec.router.template, ROUTER_RULES),
        *find_template_problems("spec.kvStore.master.template", spec.kv_store.master.template, MASTER_RULES),
    ]
    for role in ENGINE_ROLES:
        problems += _find_role_problems(resource, role)
        problems += find_scaling_problems(f"spec.{role}.scaling", role_spec(spec, role).scaling, facts)
    return tuple(dict.fromkeys(problems))


def _find_image_problems(context: Context) -> Iterator[Problem]:
    """An operator may be installed with the engine image of one device only."""
    lacking = [role.value for role in ENGINE_ROLES if not derive_image(context, role)]
    if lacking:
        device = context.spec.engine.device
        yield Problem(
            "spec.engine.image",
            f"not given for {' and '.join(lacking)}, and this operator has no engine image for device {device}",
            f"name an image, or give the operator one by --engine-image-{device} (chart: images.engine.{device})",
        )


def _find_role_problems(resource: DisaggregatedInference, role: Component) -> Iterator[Problem]:
    wish, path = role_spec(resource.spec, role), f"spec.{role}"
    yield from _find_transfer_problems(f"{path}.kvTransferConfig", wish.kv_transfer_config, role)
    found = find_template_problems(f"{path}.template", wish.template, engine_rules(role))
    yield from found
    if not found:
        env = list_overlay_env(wish.template, "engine")
        yield from find_entry_problems(resource.spec, f"{path}.template: container engine: env", env)


def _find_transfer_problems(path: str, override: dict[str, object] | None, role: Component) -> Iterator[Problem]:
    kv_role = (override or {}).get("kv_role")
    fitting = [name for name in _KV_ROLES if name != REFUSED_KV_ROLES[role]]
    if kv_role is not None and kv_role not in fitting:
        yield Problem(f"{path}.kv_role", f"found {kv_role!r} for {role}", f"write {' or '.join(fitting)}")
    for key in ("kv_role", "kv_connector"):
        if override is not None and key in override and override[key] is None:
            yield Problem(f"{path}.{key}", "found null", "remove it, or write a value: vLLM needs one")


def _find_cluster_problems(resource: DisaggregatedInference, facts: ClusterFacts) -> Iterator[Problem]:
    for role in is_over_nodes(resource.spec):
        if not facts.has_leader_worker_set:
            yield Problem(
                f"spec.{role}.parallelism.nodes",
                f"found {role_spec(resource.spec, role).parallelism.nodes}, and this cluster has no LeaderWorkerSet",
                "install LeaderWorkerSet (leaderworkerset.x-k8s.io), or set nodes to 1",
            )
    if resource.spec.kv_store.interface and facts.ip_family == "IPv6":
        yield Problem(
            "spec.kvStore.interface",
            f"found {resource.spec.kv_store.interface!r} in an IPv6 cluster, where only the pod's own IP works",
            "remove it",
        )
