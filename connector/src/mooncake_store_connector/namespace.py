"""Which engines may share KV: those whose namespace is equal. It is put before every key in the store.

vLLM's own keys name the model's last path component and ranks, but not what the bytes are. Here everything that changes
the bytes of a block goes into a digest; engines that differ in any of it do not find each other's blocks: a miss, never
garbage.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

_DIGEST_LENGTH: Final = 12

# Where the facts are, seen from vLLM's config. What a version of vLLM does not have, is left out.
_FACTS: Final = {
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "overrides": "model_config.hf_overrides",
    "rope": "model_config.hf_text_config.rope_parameters",
    # Models with two sets of rotary factors choose between them by it.
    "longest": "model_config.max_model_len",
    "attention": "attention_config.backend",
    "layers": "model_config.hf_text_config.num_hidden_layers",
    "kv_dtype": "cache_config.cache_dtype",
    "block_size": "cache_config.block_size",
    "hash": "cache_config.prefix_caching_hash_algo",
    "pp": "parallel_config.pipeline_parallel_size",
    "pcp": "parallel_config.prefill_context_parallel_size",
    "dcp": "parallel_config.decode_context_parallel_size",
    "speculative": "speculative_config.method",
    "draft": "speculative_config.model",
}
_TENSOR_FACT: Final = "parallel_config.tensor_parallel_size"
# With these, vLLM's connector itself writes a form that engines of different tensor parallelism share.
_SHARED_TENSOR_LAYOUTS: Final = ("store_tp_size", "enable_store_tp_lcm")


def describe_kv(vllm_config: object, extra: Mapping[str, Any], kv_layout: str | None, version: str) -> dict[str, str]:
    """What decides the bytes of a block, as text. `kv_layout` is the layout that was asked for, if any."""
    facts = {name: _read(vllm_config, path) for name, path in _FACTS.items()}
    if not any(extra.get(key) for key in _SHARED_TENSOR_LAYOUTS):
        facts["tp"] = _read(vllm_config, _TENSOR_FACT)
    facts["layout"] = kv_layout
    facts["vllm"] = version
    return {name: str(fact) for name, fact in sorted(facts.items()) if fact is not None}


def derive_namespace(prefix: str, facts: Mapping[str, str]) -> str:
    """The namespace: the configured prefix, then a digest of the facts."""
    text = json.dumps(dict(facts), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{prefix}-{digest}" if prefix else digest


def _read(root: object, path: str) -> object:
    for name in path.split("."):
        root = getattr(root, name, None)
    # A function's text has its address in it, which differs in every process.
    return getattr(root, "__qualname__", type(root).__name__) if callable(root) else root
