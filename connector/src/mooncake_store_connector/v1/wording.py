"""KV events in vLLM's words: the same that it says of the blocks in its own cache, but for where they lie."""

from collections.abc import Sequence
from typing import Any, Final

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from mooncake_store_connector.v1.events import Fact, Run

_STORED: Final = frozenset(BlockStored.__struct_fields__)
_REMOVED: Final = frozenset(BlockRemoved.__struct_fields__)


def is_wanted(vllm_config: Any) -> bool:
    """Whether the engine publishes KV events."""
    return bool(getattr(getattr(vllm_config, "kv_events_config", None), "enable_kv_cache_events", False))


class VllmWords:
    """See `events.Words`. Fields that this vLLM's events do not have are left out."""

    def __init__(self, kv_cache_config: Any) -> None:
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self._kinds = [(get_kv_cache_spec_kind(spec).value, get_kv_cache_spec_sliding_window(spec)) for spec in specs]

    def fact(self, request: Any, start: int, end: int, parent: bytes | None) -> Fact:
        """What there is to say of a block."""
        lora = request.lora_request
        labels = {
            "lora_id": lora.adapter_id if lora is not None else None,
            "lora_name": lora.name if lora is not None else None,
            "session_id": getattr(request, "session_id", None),
        }
        extra_keys, _ = generate_block_hash_extra_keys(request, start, end, 0)
        return Fact(parent, request.all_token_ids[start:end], extra_keys, labels)

    def stored(self, run: Run) -> Any:
        """The event for blocks that came."""
        kind, window = self._kinds[run.group]
        fields = {
            **run.labels,
            "block_hashes": [maybe_convert_block_hash(one) for one in run.hashes],
            "parent_block_hash": maybe_convert_block_hash(run.parent) if run.parent is not None else None,
            "token_ids": run.tokens,
            "block_size": run.block_tokens,
            "medium": MEDIUM_CPU,
            "extra_keys": to_event_extra_keys(run.extra_keys),
            "group_idx": run.group,
            "kv_cache_spec_kind": kind,
            "kv_cache_spec_sliding_window": window,
        }
        return BlockStored(**{name: value for name, value in fields.items() if name in _STORED})

    def removed(self, group: int, hashes: Sequence[bytes]) -> Any:
        """The event for blocks that went."""
        found = [maybe_convert_block_hash(one) for one in hashes]
        fields = {"block_hashes": found, "medium": MEDIUM_CPU, "group_idx": group}
        return BlockRemoved(**{name: value for name, value in fields.items() if name in _REMOVED})
