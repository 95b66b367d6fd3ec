"""Tells whoever scaled a workload itself, and not what owns its count, where to scale instead."""

from collections.abc import Iterator

from disagg_operator.api.names import ENGINE_ROLES, SCALER_SHORT_NAME, Component, child_name
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.roles import role_spec
from disagg_operator.plan.changes import Changes, Manifest, object_key
from disagg_operator.plan.ownership import find_writer, is_ours
from disagg_operator.status.report import Event


def find_scaled_elsewhere(resource: DisaggregatedInference, changes: Changes) -> Iterator[Event]:
    """One event for each role's workload whose count is about to be put back."""
    workloads = {child_name(resource.metadata.name, role): role for role in ENGINE_ROLES}
    for manifest in changes.applies:
        key = object_key(manifest)
        live, role = changes.live.get(key), workloads.get(key[1])
        if live is None or role is None or "replicas" not in manifest["spec"]:
            continue
        found, wanted = live["spec"].get("replicas"), manifest["spec"]["replicas"]
        if found != wanted and not is_ours(live, "spec", "replicas"):
            yield _tell(resource, role, live, wanted)


def _tell(resource: DisaggregatedInference, role: Component, live: Manifest, wanted: int) -> Event:
    name = live["metadata"]["name"]
    is_scaled = role_spec(resource.spec, role).scaling is not None
    remedy = f"scale {SCALER_SHORT_NAME}/{name}" if is_scaled else f"set spec.{role}.replicas"
    writer = find_writer(live, "spec", "replicas")
    by = f" by {writer}" if writer else ""
    found = live["spec"].get("replicas")
    message = f"{live['kind']}/{name} was scaled to {found}{by} and is put back to {wanted}; {remedy} instead"
    return Event("Warning", "ScaledElsewhere", message)
