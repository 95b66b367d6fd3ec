"""vLLM 0.9.2's own V0 connector, made to run on a CPU. Runs in its own environment.

It is vLLM's code but for what asks for CUDA or for a running engine. Replaced are the two kernels that write keys and
values into the cache, by indexing with torch, and `torch.distributed.get_rank`, which wants a process group. So what it
sends is its own work throughout, and what it receives up to the last step, where the time that it takes is not that of
a GPU's kernels.
"""

import importlib
import importlib.metadata
import os
import tomllib
from pathlib import Path
from typing import Any

import torch

_PACKAGE = "vllm.distributed.kv_transfer.kv_connector"
_PROJECT = Path(__file__).parents[3] / "connector" / "pyproject.toml"


def load() -> Any:
    """The class."""
    os.environ["VLLM_USE_V1"] = "0"
    torch.distributed.get_rank = lambda *_: 0
    utils = importlib.import_module(f"{_PACKAGE}.utils")
    utils.ops.reshape_and_cache_flash = _write_heads
    utils.ops.concat_and_cache_mla = _write_latents
    return importlib.import_module(f"{_PACKAGE}.mooncake_store_connector").MooncakeStoreConnector


def load_installed() -> Any:
    """What vLLM's factory makes after our plug-in has been loaded as vLLM loads plug-ins: by its entry point."""
    load()
    group = "vllm.general_plugins"
    entries = tomllib.loads(_PROJECT.read_text())["project"]["entry-points"][group]
    for name, value in entries.items():
        importlib.metadata.EntryPoint(name, value, group).load()()
    return importlib.import_module(f"{_PACKAGE}.factory").KVConnectorFactory.create_connector_v0


def _write_heads(
    keys: torch.Tensor, values: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: Any, *_: Any
) -> None:
    """As the kernel of this name: nothing is written for negative slots."""
    size = key_cache.shape[1]
    kept = slots >= 0
    key_cache[slots[kept] // size, slots[kept] % size] = keys[kept]
    value_cache[slots[kept] // size, slots[kept] % size] = values[kept]


def _write_latents(latents: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, slots: Any, *_: Any) -> None:
    size = cache.shape[1]
    kept = slots >= 0
    cache[slots[kept] // size, slots[kept] % size] = torch.cat((latents, rope), dim=1)[kept]
