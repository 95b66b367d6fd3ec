"""What this router counts. Every name starts with `disagg_router_`; docs/router.md lists them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "disagg_router_requests",
            "Requests answered, by route (pd, decode_only, direct, refused) and status class.",
            ["route", "status"],
            registry=registry,
        )
        self.decode_only = Counter(
            "disagg_router_decode_only",
            "Prompts answered by decode alone, by the reason for which prefill was not used.",
            ["reason"],
            registry=registry,
        )
        self.prefill = Counter("disagg_router_prefill_legs", "Prefill legs by outcome.", ["outcome"], registry=registry)
        self.decode = Counter(
            "disagg_router_decode_attempts",
            "Requests sent to decode engines by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.leg_seconds = Histogram(
            "disagg_router_leg_seconds",
            "Seconds of a leg: prefill until its answer, decode until its first byte.",
            ["leg"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.broken_streams = Counter(
            "disagg_router_broken_streams",
            "Answers that broke after their first byte had gone to the client.",
            registry=registry,
        )
        self.waiting = Gauge(
            "disagg_router_requests_waiting", "Requests that wait for a decode engine to appear.", registry=registry
        )
        self.unserved = Counter(
            "disagg_router_unserved_requests",
            "Requests that found no decode engine: demand that a scaler may act on.",
            registry=registry,
        )
        self.in_flight = Gauge("disagg_router_requests_in_flight", "Requests being worked on.", registry=registry)
        self.buffered = Gauge("disagg_router_buffered_bytes", "Bytes of request bodies held.", registry=registry)
        self.refused = Counter(
            "disagg_router_refused_requests", "Requests refused here, by reason.", ["reason"], registry=registry
        )
        self.engines = Gauge(
            "disagg_router_engines",
            "Listed engines by role and by the state of their circuit breaker.",
            ["role", "state"],
            registry=registry,
        )
        self.paired = Gauge(
            "disagg_router_engines_of_known_revision",
            "Listed engines whose KV revision is known, so that they are paired within it.",
            registry=registry,
        )
        self.breaker_opened = Counter(
            "disagg_router_breaker_opened",
            "Times an engine's circuit breaker opened, by role and reason.",
            ["role", "reason"],
            registry=registry,
        )
        self.discovery_up = Gauge(
            "disagg_router_discovery_up", "1 while discovery answers and its list can be true.", registry=registry
        )
