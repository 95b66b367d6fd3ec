"""All that one resource should have, in the order in which it is written: rights and names first, workloads last."""

from disagg_operator.api.names import ENGINE_ROLES, LABEL_REVISION, Component
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.config_map import build_config_map
from disagg_operator.build.digests import derive_kv_revision
from disagg_operator.build.disruption import build_disruption_budget
from disagg_operator.build.engine_pod import build_engine_template
from disagg_operator.build.engine_workload import build_engine_workload
from disagg_operator.build.hints import find_hints
from disagg_operator.build.inputs import ClusterFacts, Context, Counts, Desired, Manifest, Pins, service_host
from disagg_operator.build.master import build_master
from disagg_operator.build.memory import derive_pool_bytes
from disagg_operator.build.metadata_store import build_metadata_store
from disagg_operator.build.model_source import derive_model_name
from disagg_operator.build.network_policy import build_network_policies
from disagg_operator.build.objects import make_plain
from disagg_operator.build.pod_monitor import build_pod_monitor
from disagg_operator.build.roles import count_replica_ranks, role_spec
from disagg_operator.build.router import build_router
from disagg_operator.build.router_access import (
    build_router_role,
    build_router_role_binding,
    build_router_service_account,
)
from disagg_operator.build.scaler import build_autoscaler, build_scaler
from disagg_operator.build.services import (
    build_engine_service,
    build_master_service,
    build_metadata_service,
    build_router_service,
)
from disagg_operator.build.store_config import derive_store_config


def build_desired(resource: DisaggregatedInference, pins: Pins, facts: ClusterFacts, counts: Counts) -> Desired:
    """The children of a resource that has no problems (`find_problems`). The same input gives the same output."""
    context = Context(resource, pins, facts, counts)
    kv_revision = derive_kv_revision(context)
    templates = {role: build_engine_template(context, role, kv_revision) for role in ENGINE_ROLES}
    children: list[Manifest | None] = [
        build_router_service_account(context),
        build_router_role(context),
        build_router_role_binding(context),
        build_config_map(context),
        *build_network_policies(context),
        build_master_service(context),
        build_metadata_service(context),
        *(build_engine_service(context, role) for role in ENGINE_ROLES),
        build_router_service(context),
        *(build_scaler(context, role) for role in ENGINE_ROLES),
        build_master(context),
        build_metadata_store(context),
        *(build_engine_workload(context, role, templates[role]) for role in ENGINE_ROLES),
        build_router(context),
        *(build_autoscaler(context, role) for role in ENGINE_ROLES),
        *(build_disruption_budget(context, component) for component in Component),
        *(build_pod_monitor(context, component) for component in Component),
    ]
    return Desired(
        children=tuple(make_plain(child) for child in children if child is not None),
        kv_revision=kv_revision,
        revisions={role.value: templates[role]["metadata"]["labels"][LABEL_REVISION] for role in ENGINE_ROLES},
        model_name=derive_model_name(resource.spec.model),
        endpoint=derive_endpoint(context),
        hints=find_hints(resource),
        segments={role.value: _count_segments(resource, role) for role in ENGINE_ROLES},
        pool_bytes=derive_pool_bytes(resource, counts),
    )


def _count_segments(resource: DisaggregatedInference, role: Component) -> int:
    """Segments that one replica registers: one for each rank, none where a store of its own has the memory."""
    lends = derive_store_config(resource).segment_size > 0
    return count_replica_ranks(role_spec(resource.spec, role)) if lends else 0


def derive_endpoint(context: Context) -> str:
    """The address that clients use, as a full name: they may be anywhere in the cluster."""
    host = service_host(context.resource, Component.ROUTER)
    return f"http://{host}.{context.facts.cluster_domain}:{context.spec.router.service.port}"
