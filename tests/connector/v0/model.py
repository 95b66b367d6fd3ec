"""A model, batches and caches for V0 connectors, made from seeds: each process makes the same, and knows what is right.

Needs torch alone, so that programs in every environment can use it.
"""

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

FILLER = 77


@dataclass(frozen=True)
class Geometry:
    """What a model looks like to a connector, on one rank."""

    layers: int = 3
    attention_heads: int = 8
    kv_heads: int = 2
    hidden_size: int = 64
    head_dim: int | None = None
    dtype: str = "float32"
    cache_dtype: str | None = None
    mla: bool = False
    kv_lora_rank: int = 24
    qk_rope_head_dim: int = 8
    qk_nope_head_dim: int = 16
    tp: int = 1
    pp: int = 1
    stage: int = 0
    name: str = "model"

    @property
    def has_latents(self) -> bool:
        return self.mla and os.environ.get("VLLM_MLA_DISABLE", "0") == "0"

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def kv_dtype(self) -> torch.dtype:
        return getattr(torch, self.cache_dtype) if self.cache_dtype else self.torch_dtype

    @property
    def stage_layers(self) -> range:
        """The layers of this stage; the last one has what is over."""
        each = self.layers // self.pp
        return range(self.stage * each, self.layers if self.stage == self.pp - 1 else (self.stage + 1) * each)

    @property
    def heads(self) -> int:
        return 1 if self.has_latents else max(1, self.kv_heads // self.tp)

    @property
    def head_size(self) -> int:
        if self.has_latents:
            return self.kv_lora_rank + self.qk_rope_head_dim
        if self.mla:
            return self.qk_nope_head_dim + self.qk_rope_head_dim
        return self.head_dim or self.hidden_size // self.attention_heads

    def config(self, extra: dict[str, Any] | None = None, connector: str = "MooncakeStoreConnector") -> Any:
        """What stands in for vLLM's config."""
        transfer = SimpleNamespace(kv_connector=connector, kv_connector_extra_config=extra or {})
        return SimpleNamespace(
            kv_transfer_config=transfer,
            model_config=SimpleNamespace(is_deepseek_mla=self.mla, dtype=self.torch_dtype, model=self.name),
            parallel_config=SimpleNamespace(tensor_parallel_size=self.tp, pipeline_parallel_size=self.pp),
            device_config=SimpleNamespace(device_type="cpu"),
        )

    def executable(self) -> Any:
        """What stands in for vLLM's model."""
        names = ("hidden_size", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
        config = SimpleNamespace(
            num_key_value_heads=self.kv_heads,
            num_attention_heads=self.attention_heads,
            head_dim=self.head_dim,
            **{name: getattr(self, name) for name in names},
        )
        attention = SimpleNamespace(kv_cache_dtype="auto", _k_scale=1.0, _v_scale=1.0)
        layer = SimpleNamespace(self_attn=SimpleNamespace(attn=attention, mla_attn=attention))
        stage = self.stage_layers
        model = SimpleNamespace(
            config=config, start_layer=stage.start, end_layer=stage.stop, layers=[layer] * self.layers
        )
        return SimpleNamespace(model=model)


@dataclass(frozen=True)
class Batch:
    """Sequences as (seed, length), and where their slots are. A seed of None stands for decode work."""

    sequences: tuple[tuple[int | None, int], ...]
    block_size: int = 16
    slots_seed: int = 0
    spare_blocks: int = 3
    token_dtype: str = "int64"
    no_slot: tuple[int, ...] = ()
    """Positions in the batch whose slot is -1."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """What `attn_metadata` says in place of the truth."""

    @property
    def prefills(self) -> list[tuple[int, int]]:
        return [(seed, length) for seed, length in self.sequences if seed is not None]

    @property
    def prefill_tokens(self) -> int:
        return sum(length for _, length in self.prefills)

    @property
    def blocks(self) -> int:
        needed = sum(-(-length // self.block_size) for _, length in self.sequences)
        return needed + self.spare_blocks

    def slots(self) -> torch.Tensor:
        """A slot for each token of prefill and one for each decode sequence; blocks are drawn at random."""
        order = iter(torch.randperm(self.blocks, generator=_generator(self.slots_seed)).tolist())
        slots: list[int] = []
        for seed, length in self.sequences:
            blocks = [next(order) for _ in range(-(-length // self.block_size))]
            own = [blocks[i // self.block_size] * self.block_size + i % self.block_size for i in range(length)]
            slots += own if seed is not None else own[-1:]
        for position in self.no_slot:
            slots[position] = -1
        return torch.tensor(slots, dtype=torch.int64)

    def input(self) -> Any:
        """What stands in for vLLM's model input."""
        parts = [tokens_of(seed, length) for seed, length in self.prefills]
        decode = torch.full((len(self.sequences) - len(parts),), 5)
        tokens = torch.cat([*parts, decode]).to(getattr(torch, self.token_dtype))
        metadata = {
            "seq_lens": [length for _, length in self.sequences],
            "slot_mapping": self.slots(),
            "num_prefill_tokens": self.prefill_tokens,
            **self.overrides,
        }
        if "slot_mapping_list" in metadata:
            metadata["slot_mapping"] = torch.tensor(metadata["slot_mapping_list"])
        return SimpleNamespace(input_tokens=tokens, attn_metadata=SimpleNamespace(**metadata))


def tokens_of(seed: int, length: int) -> torch.Tensor:
    """A sequence's tokens."""
    return torch.randint(0, 30000, (length,), generator=_generator(seed))


def kv_of(geometry: Geometry, seed: int, length: int, rank: int = 0) -> torch.Tensor:
    """A sequence's KV on this stage, `[2, layers, tokens, heads, head size]`: each layer of the model has its own."""
    layers = []
    for layer in geometry.stage_layers:
        shape = (2, length, geometry.heads, geometry.head_size)
        kv = torch.randn(shape, generator=_generator(seed * 1000 + layer * 10 + rank)).to(geometry.kv_dtype)
        layers.append(torch.stack((kv[0], kv[0])) if geometry.has_latents else kv)
    return torch.stack(layers, dim=1)


def hidden_of(geometry: Geometry, seed: int, length: int) -> torch.Tensor:
    """A sequence's hidden states."""
    return torch.randn((length, geometry.hidden_size), generator=_generator(seed + 7)).to(geometry.torch_dtype)


def hidden_of_batch(geometry: Geometry, batch: Batch) -> torch.Tensor:
    """Those of all its tokens, decode work too."""
    decodes = len(batch.sequences) - len(batch.prefills)
    parts = [hidden_of(geometry, seed, length) for seed, length in batch.prefills]
    return torch.cat([*parts, torch.zeros(decodes, geometry.hidden_size, dtype=geometry.torch_dtype)])


def empty_caches(geometry: Geometry, batch: Batch) -> list[torch.Tensor]:
    """The caches of this stage's layers, full of a value that no sequence has."""
    block = (batch.blocks, batch.block_size)
    shape = (*block, geometry.head_size) if geometry.has_latents else (2, *block, geometry.heads, geometry.head_size)
    return [torch.full(shape, FILLER, dtype=geometry.kv_dtype) for _ in geometry.stage_layers]


def fill(geometry: Geometry, batch: Batch, caches: list[torch.Tensor], seeds: set[int], rank: int = 0) -> None:
    """Write the KV of these sequences where the batch has them. By plain indexing, one layer after another."""
    slots, start = batch.slots(), 0
    for seed, length in batch.prefills:
        own = slots[start : start + length]
        kv = kv_of(geometry, seed, length, rank)[:, :, own >= 0]
        start += length
        if seed not in seeds:
            continue
        for layer, cache in enumerate(caches):
            for half, rows in zip(
                [cache] if geometry.has_latents else [cache[0], cache[1]], kv[:, layer], strict=False
            ):
                half.view(-1, geometry.heads, geometry.head_size)[own[own >= 0]] = rows


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
