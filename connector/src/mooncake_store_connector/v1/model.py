"""What of an engine's configuration decides its KV: its groups, and everything by which its bytes are told apart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from mooncake_store_connector.groups import Group, Shape
from mooncake_store_connector.weights import fingerprint_weights

_FULL: Final = (FullAttentionSpec, MLAAttentionSpec)
# Speculative methods that keep no KV of their own.
_PLAIN_SPECULATION: Final = ("ngram", "ngram_gpu", "suffix")


def why_off(vllm_config: Any, kv_cache_config: Any) -> str:
    """Why this engine cannot share KV, or an empty string."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return f"{name} is {getattr(parallel, name)}: context parallel KV is not shared"
    if getattr(parallel, "nnodes", 1) > 1:
        return "its ranks are on several nodes"
    method = getattr(vllm_config.speculative_config, "method", None)
    if method is not None and method not in _PLAIN_SPECULATION:
        return f"speculative decoding by {method} keeps KV of its own that depends on what comes after a block"
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        for spec in _layer_specs(group.kv_cache_spec):
            if type(spec) not in (*_FULL, SlidingWindowSpec):
                return f"KV group {index} is {type(spec).__name__}, whose blocks are not shared"
    return "" if kv_cache_config.kv_cache_groups else "the model has no KV cache"


def why_no_recovery(vllm_config: Any, kv_cache_config: Any) -> str:
    """Why vLLM cannot compute blocks that it thought were loaded, or an empty string."""
    if len(kv_cache_config.kv_cache_groups) > 1:
        return "block ids of several KV groups do not tell which request is meant"
    if getattr(vllm_config, "max_concurrent_batches", 1) > 1:
        return "the next step is already under way, and its tokens would be taken as they are"
    return ""


def shape_of(vllm_config: Any, kv_cache_config: Any) -> Shape:
    """The groups of an engine that shares KV."""
    unit, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    groups = tuple(
        Group(group.kv_cache_spec.block_size, _window(group.kv_cache_spec)) for group in kv_cache_config.kv_cache_groups
    )
    return Shape(groups, unit, hash_tokens)


def describe_groups(
    vllm_config: Any, kv_cache_config: Any, caches: Mapping[str, Any], payloads: Sequence[int]
) -> dict[str, str]:
    """What decides the bytes of a block beyond vLLM's configuration, as text. Known once the caches are there.

    `isa` is the instruction set: on CPUs the attention backend packs KV by it, into other bytes of the same shape.
    """
    layers = vllm_config.compilation_config.static_forward_context
    facts = {"kv_layout": str(getattr(kv_cache_config, "kv_cache_layout", None)), "weights": _weights(vllm_config)}
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        present = [name for name in group.layer_names if name in caches]
        told: dict[str, object] = {
            "spec": [repr(spec) for spec in _layer_specs(group.kv_cache_spec)],
            "caches": sorted({str((caches[name].dtype, tuple(caches[name].shape[1:]))) for name in present}),
            "backend": sorted({_backend(layers.get(name)) for name in present}),
            "isa": sorted({str(getattr(layers.get(name), "isa", "")) for name in present}),
            "scales": sorted({_scales(layers.get(name)) for name in present}),
            "layers": len(present),
            "bytes": payloads[index],
        }
        facts |= {f"group{index}.{name}": str(fact) for name, fact in told.items()}
    return facts


def _layer_specs(spec: Any) -> list[Any]:
    return list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]


def _window(spec: Any) -> int | None:
    first = _layer_specs(spec)[0]
    return int(first.sliding_window) if isinstance(first, SlidingWindowSpec) else None


def _backend(layer: Any) -> str:
    backend = getattr(layer, "attn_backend", None)
    return str(backend.get_name()) if backend is not None and hasattr(backend, "get_name") else type(layer).__name__


def _scales(layer: Any) -> str:
    return f"{getattr(layer, '_k_scale_float', '')}/{getattr(layer, '_v_scale_float', '')}"


def _weights(vllm_config: Any) -> str:
    folder = Path(str(vllm_config.model_config.model))
    return fingerprint_weights(folder) if folder.is_dir() else f"{folder}@{vllm_config.model_config.revision}"
