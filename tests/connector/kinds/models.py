"""Tiny models of each kind of attention, with random weights. Run in the engines' environment: `models.py FOLDER`.

Weights are scaled so that every block of KV matters. A token attends to all that it sees about alike, so no block is
left out; and what attention brings weighs as much as the token itself, so the next token follows from the whole prompt
and not from the last token. With the usual small weights, answers repeat one token, whatever the KV is.
"""

import math
import sys
from pathlib import Path
from typing import Any, Final

import torch
import transformers

VOCABULARY: Final = 512
_COMMON: Final = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _llama(kv_heads: int, **changes: Any) -> Any:
    return transformers.LlamaConfig(**{**_COMMON, "head_dim": 32, "num_key_value_heads": kv_heads, **changes})


def _hybrid() -> Any:
    """Layers with a sliding window, and some that see everything: three groups of two layers."""
    layers = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return transformers.Gemma3TextConfig(
        **{**_COMMON, "num_hidden_layers": len(layers), "num_key_value_heads": 2},
        layer_types=layers,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=64,
    )


def _mla() -> Any:
    """The ranks are those of DeepSeek: the CPU has a kernel for no others. No layer has experts."""
    return transformers.DeepseekV2Config(
        **_COMMON,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=64,
        v_head_dim=32,
        first_k_dense_replace=3,
        n_routed_experts=4,
        num_experts_per_tok=2,
        # As DeepSeek has it. With plain rotary embedding, vLLM 0.32 on CPUs takes the slice of keys by a wrong
        # stride and writes into latent KV: without any connector, one prompt then has two answers.
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    )


def _recurrent() -> Any:
    """Each layer is of attention and of Mamba."""
    return transformers.FalconH1Config(
        **_COMMON,
        head_dim=32,
        num_key_value_heads=2,
        mamba_d_ssm=256,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=16,
        # Longer than any prompt: vLLM's code for CPUs knows the state at a prompt's end alone, not at each chunk's.
        mamba_chunk_size=2048,
    )


KINDS: Final = {
    "gqa": lambda: _llama(4, num_attention_heads=8, hidden_size=256),
    "mha": lambda: _llama(4),
    "hybrid": _hybrid,
    "mla": _mla,
    "recurrent": _recurrent,
}


def _gain(name: str) -> float:
    """In the first layer attention adds up vectors that point anywhere: their mean is much shorter than one of them.

    Later layers' have that mean in common, which would leave nothing else to see if it were made larger once more.
    """
    return 16.0 if "layers.0." in name and "o_proj" in name else 1.0


def _fill(model: Any, seed: int) -> None:
    """Random weights that keep the size of what they are applied to, but for attention's first output."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() == 2:
                weight.normal_(0, _gain(name) / math.sqrt(weight.shape[1]), generator=draw)
        # Gemma multiplies by the root of the width, others by nothing.
        scale = float(getattr(model.model.embed_tokens, "embed_scale", 1.0))
        model.model.embed_tokens.weight.normal_(0, 1 / scale, generator=draw)


def make(folder: Path) -> None:
    """All kinds, each in a folder of its name."""
    for seed, (kind, config) in enumerate(KINDS.items()):
        model = transformers.AutoModelForCausalLM.from_config(config(), dtype=torch.float32)
        _fill(model, seed)
        model.save_pretrained(folder / kind)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(Path(sys.argv[1]))
