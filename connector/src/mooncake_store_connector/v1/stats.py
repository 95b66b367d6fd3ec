"""What the connector counts, as vLLM's statistics and as Prometheus counters."""

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

# Name of a count, or its beginning: the metric it belongs to, and what it says. The rest of a name is a label.
FAMILIES = {
    "loaded_tokens": ("loaded_tokens", "Prompt tokens whose KV came from the store."),
    "loaded_blocks": ("loaded_blocks", "Blocks that were loaded and proven, on all ranks."),
    "loaded_bytes": ("loaded_bytes", "Bytes that were loaded and proven."),
    "saved_blocks": ("saved_blocks", "Blocks that the store took."),
    "saved_bytes": ("saved_bytes", "Bytes that the store took."),
    "save_wait_seconds": ("save_wait_seconds", "Time that steps waited for room to hand over what is to be stored."),
    "load_seconds": ("load_seconds", "Time that loads took, from the first block to the last."),
    "save_seconds": ("save_seconds", "Time that saves took, checksums and all."),
    "lookup_seconds": ("lookup_seconds", "Time that lookups took, waits for what was promised included."),
    "lookups": ("lookups", "Prompts that were looked up."),
    "misses_": ("misses", "Objects that were not there, or not what they should be, by reason."),
    "drops_": ("drops", "Blocks that were not stored, by reason."),
    "poison_removed": ("poison_removed", "Objects that could never be right and were removed."),
    "promises_broken": ("promises_broken", "Prompts whose KV did not come in time although prefill had promised it."),
    "waits_over_budget": ("waits_over_budget", "Requests that were computed because the store took too long."),
    "loads_cut_by_memory": ("loads_cut_by_memory", "Prefixes that were loaded in part, for want of host memory."),
    "breaker_opened": ("breaker_opened", "Times that the store stopped answering."),
    "joined": ("joined", "Times that a client joined the store."),
    "save_errors": ("errors", "Saves that ended in an error of ours."),
}


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
            prefix = next((prefix for prefix in FAMILIES if _belongs(name, prefix)), None)
            if prefix is not None:
                labels = [
                    *self.per_engine_labelvalues[engine_idx],
                    *([name[len(prefix) :]] if prefix.endswith("_") else []),
                ]
                self._counters[FAMILIES[prefix][0]].labels(*labels).inc(amount)


def _belongs(name: str, prefix: str) -> bool:
    return name.startswith(prefix) if prefix.endswith("_") else name == prefix
