"""PodDisruptionBudgets: a drain of nodes takes one pod of a part at a time."""

from disagg_operator.api.names import ENGINE_ROLES, Component, child_name, selector_labels
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object


def build_disruption_budget(context: Context, component: Component) -> Manifest | None:
    """The budget of one part. None for a single replica, whose budget would only block the drain for ever."""
    if _count(context, component) < 2:
        return None
    spec = {
        "maxUnavailable": 1,
        # A pod that is not ready serves nobody, so it may go.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_labels(context.name, component)},
    }
    name = child_name(context.name, component)
    return build_object(context, "policy/v1", "PodDisruptionBudget", name, component, spec=spec)


def _count(context: Context, component: Component) -> int:
    if component in ENGINE_ROLES:
        return context.counts.of(component)
    return context.spec.router.replicas if component is Component.ROUTER else 1
