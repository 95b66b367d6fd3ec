"""What `kv_connector_extra_config` may say to this connector. Every key is checked; an unknown one is named."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mooncake_store_connector.durations import parse_duration_ms
from mooncake_store_connector.problems import ConfigError, Problem

_PATH: Final = "kv_connector_extra_config"
_DEFAULT_WAIT_MS: Final = 1000
_DEFAULT_SAVE_WAIT_MS: Final = 500
# What vLLM's own store connector reads, and what becomes of it here.
_UPSTREAM: Final = {
    "load_async": "loads never block here",
    "lookup_async": "lookups never block here",
    "enable_lookup": "use kv_role kv_producer for an engine that only stores",
    "preferred_segment": "an engine's own segment comes first",
    "enable_group_semantics": "not used",
    "custom_mem_pool": "not used",
    "lookup_rpc_port": "not used: the agent listens on no port",
}
_REFUSED: Final = {
    "store_tp_size": "remove it: engines of different tensor parallelism do not share KV",
    "enable_store_tp_lcm": "remove it: engines of different tensor parallelism do not share KV",
    "prefill_tp_sizes": "remove it: engines of different tensor parallelism do not share KV",
}
KNOWN: Final = ("cache_prefix", "wait_ms", "save_wait_ms", "save_decode_cache")


@dataclass(frozen=True)
class Settings:
    """Times in milliseconds."""

    cache_prefix: str
    """Put before every key. Engines that may share KV have the same; the operator writes the kv-revision here."""
    wait_ms: int
    """The longest that a request waits for its lookup, for what prefill promised and for its load, all in all."""
    save_wait_ms: int
    """How long a step may wait for room to hand over what is to be stored, before it is dropped."""
    save_decode_cache: bool
    """Whether KV of generated tokens is stored as well."""
    notes: tuple[str, ...] = ()
    """Sentences about keys that change nothing."""


def own_options(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The extra config without what vLLM itself puts into it."""
    return {key: value for key, value in extra.items() if not key.startswith("_")}


def read_settings(extra: Mapping[str, Any]) -> Settings:
    """Read them. Raises ConfigError with every problem found."""
    problems = []
    notes = []
    for key in extra:
        if key in _REFUSED:
            problems.append(Problem(f"{_PATH}.{key}", "an option of another connector", _REFUSED[key]))
        elif key in _UPSTREAM:
            notes.append(f"{_PATH}.{key} has no effect: {_UPSTREAM[key]}")
        elif key not in KNOWN:
            near = difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]}?" if near else f"known keys are {', '.join(KNOWN)}"
            problems.append(Problem(f"{_PATH}.{key}", "an unknown key", remedy))
    save_decode = extra.get("save_decode_cache", False)
    if not isinstance(save_decode, bool):
        problems.append(Problem(f"{_PATH}.save_decode_cache", f"found {save_decode!r}", "write true or false"))
    prefix = extra.get("cache_prefix") or ""
    if not isinstance(prefix, str):
        problems.append(Problem(f"{_PATH}.cache_prefix", f"found {prefix!r}", "write a text"))
    times = {"wait_ms": _DEFAULT_WAIT_MS, "save_wait_ms": _DEFAULT_SAVE_WAIT_MS}
    for key, default in list(times.items()):
        try:
            times[key] = parse_duration_ms(extra.get(key, default), f"{_PATH}.{key}")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return Settings(str(prefix), times["wait_ms"], times["save_wait_ms"], bool(save_decode), tuple(notes))
