"""What the connector counts, as vLLM's statistics and as Prometheus counters. Their names are in `families`."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from mooncake_store_connector.v1.families import FAMILIES, family_of


@dataclass
class StoreStats(KVConnectorStats):  # type: ignore[misc]
    """Sums by name since the last time."""

    data: dict[str, float] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget them."""
        self.data = {}

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> "StoreStats":
        """Both together."""
        for name, amount in other.data.items():
            self.data[name] = self.data.get(name, 0.0) + amount
        return self

    def reduce(self) -> dict[str, int | float]:
        """What is told in vLLM's log."""
        return {name: round(amount, 3) for name, amount in sorted(self.data.items())}


class StorePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Counters of the families above, with a label for the reason."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counters = {
            metric: self._counter_cls(
                name=f"vllm:mooncake_{metric}_total",
                documentation=text,
                labelnames=[*self._labelnames, *(["reason"] if prefix.endswith("_") else [])],
            )
            for prefix, (metric, text) in FAMILIES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add sums to the counters. Names that belong to no family are left out."""
        for name, amount in (transfer_stats_data or {}).items():
            family = family_of(name)
            if family is not None:
                metric, reasons = family
                self._counters[metric].labels(*self.per_engine_labelvalues[engine_idx], *reasons).inc(amount)
