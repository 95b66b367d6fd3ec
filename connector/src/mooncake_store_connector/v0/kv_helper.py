"""Reads a model's KV geometry, and moves K and V between a paged cache and a dense block.

A dense block of one layer is `[2, tokens, kv heads, head size]`: keys, then values. Bits are moved as they are,
whatever the dtype. On CUDA, rows are gathered and scattered on the device.
"""

import math
import os
from typing import Any, Final

import torch

_MLA_DISABLE_ENV: Final = "VLLM_MLA_DISABLE"
# Rows move fastest as few wide words.
_WORDS: Final = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class ModelAwareKVHelper:
    """Knows how a model's cache is laid out: heads with keys and values, or one latent for each token (MLA)."""

    def __init__(self, config: Any) -> None:
        self.is_deepseek_mla = bool(config.model_config.is_deepseek_mla)
        self.use_mla_opt = os.environ.get(_MLA_DISABLE_ENV, "0").strip() in ("", "0")
        self.tp_size = int(config.parallel_config.tensor_parallel_size)

    @property
    def has_latents(self) -> bool:
        """Whether the cache holds one latent for each token in place of keys and values."""
        return self.is_deepseek_mla and self.use_mla_opt

    def get_model_args(self, model_executable: Any) -> tuple[int, int]:
        """KV heads on this rank, and head size. Ranks beyond the number of KV heads share one."""
        config = model_executable.model.config
        if self.has_latents:
            return 1, int(config.kv_lora_rank + config.qk_rope_head_dim)
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        heads = max(1, int(kv_heads) // self.tp_size)
        if self.is_deepseek_mla:
            return heads, int(config.qk_nope_head_dim + config.qk_rope_head_dim)
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return heads, int(head_size)

    def count_slots(self, kv_cache: torch.Tensor, num_heads: int, head_size: int) -> int:
        """The number of slots of a layer's cache."""
        return int(kv_cache.numel()) // (num_heads * head_size * (1 if self.has_latents else 2))

    def get_kv_from_cache(
        self, kv_cache: torch.Tensor, num_heads: int, head_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values, each `[slots, heads, head size]`. For MLA both are the latents."""
        key, value = self._halves(kv_cache)
        return key.reshape(-1, num_heads, head_size), value.reshape(-1, num_heads, head_size)

    def put_kv_to_cache(
        self,
        model_executable: Any,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: Any,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        start_pos: int,
        end_pos: int,
    ) -> None:
        """Write keys and values, `[tokens, heads, head size]`, to the slots `slot_mapping[start_pos:end_pos]`.

        Nothing is written for negative slots. The model and the layer are not looked at: bits go in as they came out.
        """
        slots = slot_mapping[start_pos:end_pos]
        if bool((slots < 0).any()):
            kept = (slots >= 0).nonzero().flatten()
            slots, keys, values = slots[kept], keys[kept.to(keys.device)], values[kept.to(values.device)]
        self.scatter((keys, values), kv_cache, slots)

    def gather(self, kv_cache: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the rows of `slots` into `out`, `[2, tokens, heads, head size]`, which may be on another device."""
        key, value = self._halves(kv_cache)
        _gather_rows(key, slots, out[0])
        if self.has_latents and out.device == kv_cache.device:
            out[1].copy_(out[0])
        else:
            _gather_rows(value, slots, out[1])

    def scatter(
        self, block: torch.Tensor | tuple[torch.Tensor, torch.Tensor], kv_cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Copy keys and values, which may be on another device, into the rows of `slots`."""
        halves = self._halves(kv_cache)
        # The two halves of MLA are the same place.
        for half, rows in zip(halves[:1] if self.has_latents else halves, block, strict=False):
            _scatter_rows(rows, half, slots)

    def _halves(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (kv_cache, kv_cache) if self.has_latents else (kv_cache[0], kv_cache[1])


def _gather_rows(half: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    rows = half.reshape(-1, math.prod(out.shape[1:]))
    slots = slots.to(half.device)
    if out.device != half.device:
        out.copy_(rows.index_select(0, slots).view(out.shape), non_blocking=True)
        return
    source, target = _as_words(rows, out.view(len(out), -1))
    torch.index_select(source, 0, slots, out=target)


def _scatter_rows(rows: torch.Tensor, half: torch.Tensor, slots: torch.Tensor) -> None:
    slots = slots.to(half.device)
    rows = rows.reshape(len(rows), -1).to(half.device, non_blocking=True)
    if half.is_contiguous():
        target, source = _as_words(half.view(-1, rows.shape[1]), rows)
        target.index_copy_(0, slots, source)
        return
    block_size = half.shape[1]
    half[slots // block_size, slots % block_size] = rows.view(len(rows), *half.shape[2:])


def _as_words(*matrices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same bits as integers, as wide as the rows of all of them and where they lie allow."""
    row_bytes = [matrix.shape[1] * matrix.element_size() for matrix in matrices]
    starts = [matrix.storage_offset() * matrix.element_size() for matrix in matrices]
    for size, dtype in _WORDS:
        if all(number % size == 0 for number in (*row_bytes, *starts)):
            return tuple(matrix.view(dtype) for matrix in matrices)
    return matrices
