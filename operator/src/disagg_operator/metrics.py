"""What the operator counts. Names and meanings are in docs/operations.md; labels have few values."""

from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from disagg_operator import __version__
from disagg_operator.build.inputs import TEMPLATE_VERSION

Manifest = dict[str, Any]
_PREFIX: Final = "disaggregatedinference"
_STATES: Final = ("True", "False", "Unknown")
_COUNTS: Final = {"ready": "readyReplicas", "updated": "updatedReplicas", "present": "replicas"}


class Metrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("reconcile_total", "Reconciles by result.", "result")
        self.duration = Histogram(
            f"{_PREFIX}_reconcile_duration_seconds",
            "Time of one reconcile.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
            registry=self.registry,
        )
        self.writes = self._counter("writes_total", "Objects written or deleted.", "verb", "kind")
        self.requests = self._counter(
            "api_requests_total", "Calls to the API server; code 0 when nobody answered.", "verb", "code"
        )
        self.queue_depth = self._gauge("queue_depth", "Resources waiting for a worker.")
        self.queue_latency = Histogram(
            f"{_PREFIX}_queue_latency_seconds",
            "Time that a resource waited for a worker.",
            buckets=(0.001, 0.01, 0.1, 0.5, 1, 5, 15, 60, 300),
            registry=self.registry,
        )
        self.failing = self._gauge("failing_resources", "Resources whose last reconcile failed.")
        self.leader = self._gauge("leader", "1 while this process leads.")
        self.watch_age = self._gauge(
            "watch_age_seconds", "For how long the watch has been behind what a list shows; 0 when it is not."
        )
        self.conditions = self._gauge(
            "condition", "1 for the status that a condition has.", "namespace", "name", "type", "status"
        )
        self.replicas = self._gauge(
            "replicas", "Pods of a role: desired, present, updated, ready.", "namespace", "name", "role", "kind"
        )
        build = self._gauge("build_info", "Always 1; labels tell the version.", "version", "template_version")
        build.labels(__version__, str(TEMPLATE_VERSION)).set(1)

    def show_status(self, namespace: str, name: str, status: Manifest) -> None:
        """Show a resource's status in gauges."""
        for condition in status.get("conditions", []):
            for state in _STATES:
                gauge = self.conditions.labels(namespace, name, condition["type"], state)
                gauge.set(1 if condition["status"] == state else 0)
        present = {condition["type"] for condition in status.get("conditions", [])}
        for kind in ("Reconciling", "Stalled"):
            if kind not in present:
                self.conditions.labels(namespace, name, kind, "True").set(0)
        for role in ("prefill", "decode"):
            counts = status.get(role, {})
            for kind, key in _COUNTS.items():
                self.replicas.labels(namespace, name, role, kind).set(counts.get(key, 0))
            wished = counts.get("ready", "/0").partition("/")[2]
            self.replicas.labels(namespace, name, role, "desired").set(int(wished))

    def forget(self, namespace: str, name: str) -> None:
        """Drop the gauges of a resource that is gone."""
        labels = {"namespace": namespace, "name": name}
        self.conditions.remove_by_labels(labels)
        self.replicas.remove_by_labels(labels)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", help_text, labels, registry=self.registry)
