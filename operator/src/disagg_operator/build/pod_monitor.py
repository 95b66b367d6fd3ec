"""PodMonitors of the Prometheus operator, where the cluster has that kind."""

from typing import Final

from disagg_operator.api.names import LABEL_NAME, LABEL_ROLE, Component, child_name, selector_labels
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object

# Port of each part that has metrics.
_PORTS: Final = {
    Component.PREFILL: "http",
    Component.DECODE: "http",
    Component.MASTER: "admin",
    Component.ROUTER: "admin",
}


def build_pod_monitor(context: Context, component: Component) -> Manifest | None:
    """How Prometheus finds a part's pods. None where the kind is absent or the part has no metrics of ours."""
    external = component is Component.MASTER and context.spec.kv_store.master.external
    if not context.facts.has_pod_monitor or component not in _PORTS or external:
        return None
    spec = {
        "selector": {"matchLabels": selector_labels(context.name, component)},
        "podTargetLabels": [LABEL_NAME, LABEL_ROLE],
        "podMetricsEndpoints": [{"port": _PORTS[component], "path": "/metrics"}],
    }
    name = child_name(context.name, component)
    return build_object(context, "monitoring.coreos.com/v1", "PodMonitor", name, component, spec=spec)
