"""What the operator counts. Names and meanings are in docs/operations.md; labels have few values."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PREFIX = "disaggregatedinference"


class Metrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            f"{_PREFIX}_reconcile_total", "Reconciles by result.", ["result"], registry=self.registry
        )
        self.duration = Histogram(
            f"{_PREFIX}_reconcile_duration_seconds",
            "Time of one reconcile.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
            registry=self.registry,
        )
        self.writes = Counter(
            f"{_PREFIX}_writes_total", "Objects written or deleted.", ["verb", "kind"], registry=self.registry
        )
        self.queue_depth = Gauge(f"{_PREFIX}_queue_depth", "Resources waiting for a worker.", registry=self.registry)
        self.failing = Gauge(
            f"{_PREFIX}_failing_resources", "Resources whose last reconcile failed.", registry=self.registry
        )
        self.leader = Gauge(f"{_PREFIX}_leader", "1 while this process leads.", registry=self.registry)
