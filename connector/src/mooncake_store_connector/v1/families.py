"""The metrics of the connector: which count belongs to which, and what each says. Pure."""

from typing import Final

# Name of a count, or its beginning: the metric it belongs to, and what it says. The rest of a name is a label.
FAMILIES: Final = {
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
    "promises_withheld": ("promises_withheld", "Answers without a promise, since the store was full."),
    "waits_over_budget": ("waits_over_budget", "Requests that were computed because the store took too long."),
    "loads_cut_by_memory": ("loads_cut_by_memory", "Prefixes that were loaded in part, for want of host memory."),
    "breaker_opened": ("breaker_opened", "Times that the store stopped answering."),
    "joined": ("joined", "Times that a client joined the store."),
    "events_dropped": (
        "events_dropped",
        "Blocks of which no KV event was told: too many at a time, or not known any more.",
    ),
    "save_errors": ("errors", "Saves that ended in an error of ours."),
}


def family_of(name: str) -> tuple[str, list[str]] | None:
    """The metric that a count belongs to, and its reason if it has one; None for a count that nobody shows."""
    for prefix, (metric, _) in FAMILIES.items():
        if name == prefix:
            return metric, []
        if prefix.endswith("_") and name.startswith(prefix):
            return metric, [name.removeprefix(prefix)]
    return None
