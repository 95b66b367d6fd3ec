"""What `kv_connector_extra_config` may say to this connector, beyond what vLLM's own reads from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mooncake_store_connector.durations import parse_duration_ms

_PATH: Final = "kv_connector_extra_config"
_DEFAULT_HANDOFF_TIMEOUT_MS: Final = 3000
_DEFAULT_LOOKUP_TIMEOUT_MS: Final = 1000


@dataclass(frozen=True)
class Settings:
    """Times in milliseconds."""

    cache_prefix: str
    """Put before every key. Engines that may share KV have the same; the operator writes the kv-revision here."""
    handoff_timeout_ms: int
    """How long decode waits for what prefill said it stores, from its first look. 0: not at all."""
    lookup_timeout_ms: int
    """How long one lookup may take; the scheduler runs on meanwhile. After it, the store is left alone for a while."""


def read_settings(extra: Mapping[str, Any]) -> Settings:
    """Read them. Raises ConfigError, naming the key."""
    return Settings(
        cache_prefix=str(extra.get("cache_prefix") or ""),
        handoff_timeout_ms=_read(extra, "handoff_timeout_ms", _DEFAULT_HANDOFF_TIMEOUT_MS),
        lookup_timeout_ms=max(1, _read(extra, "lookup_timeout_ms", _DEFAULT_LOOKUP_TIMEOUT_MS)),
    )


def _read(extra: Mapping[str, Any], key: str, default: int) -> int:
    return parse_duration_ms(extra.get(key, default), f"{_PATH}.{key}")
