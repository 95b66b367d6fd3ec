"""The scaler of a role, through which others own its count, and the autoscaler that moves it where one is wished."""

from typing import Any

from disagg_operator.api.engine import Scaling
from disagg_operator.api.names import API_VERSION, SCALER_KIND, Component, child_name
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object, compact
from disagg_operator.build.roles import role_spec


def build_scaler(context: Context, role: Component) -> Manifest | None:
    """The scaler of a role, None where the count is written into the resource.

    It has no count: that field is never the operator's. A new scaler is created with one under another field manager.
    """
    if role_spec(context.spec, role).scaling is None:
        return None
    spec = {"role": role.value, "resource": context.name}
    return build_object(context, API_VERSION, SCALER_KIND, child_name(context.name, role), role, spec=spec)


def build_autoscaler(context: Context, role: Component) -> Manifest | None:
    """A HorizontalPodAutoscaler or a ScaledObject on the scaler. None where scaling is left to the user."""
    scaling = role_spec(context.spec, role).scaling
    if scaling is not None and scaling.metrics:
        return _build_horizontal(context, role, scaling)
    if scaling is not None and scaling.keda is not None:
        return _build_scaled_object(context, role, scaling, scaling.keda)
    return None


def _build_horizontal(context: Context, role: Component, scaling: Scaling) -> Manifest:
    spec = compact(
        scaleTargetRef=_build_target(context, role),
        minReplicas=scaling.min_replicas,
        maxReplicas=scaling.max_replicas,
        metrics=scaling.metrics,
        behavior=scaling.behavior,
    )
    name = child_name(context.name, role)
    return build_object(context, "autoscaling/v2", "HorizontalPodAutoscaler", name, role, spec=spec)


def _build_scaled_object(context: Context, role: Component, scaling: Scaling, keda: dict[str, Any]) -> Manifest:
    bounds = compact(minReplicaCount=scaling.min_replicas, maxReplicaCount=scaling.max_replicas)
    spec = {"scaleTargetRef": _build_target(context, role), **bounds, **keda}
    return build_object(context, "keda.sh/v1alpha1", "ScaledObject", child_name(context.name, role), role, spec=spec)


def _build_target(context: Context, role: Component) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": SCALER_KIND, "name": child_name(context.name, role)}
