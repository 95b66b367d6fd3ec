"""How a block's bytes lie in the engine's caches, and how they lie in a slot: one layer after another.

A layer's cache is seen as rows, one per block, of bytes that lie together. Where a layout scatters a block's bytes, it
is refused: the reason is told, and the engine serves without the store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


class UnfitLayoutError(ValueError):
    """The caches cannot be shared. The text says why."""


@dataclass(frozen=True)
class GroupLayout:
    """Rows of one group's layers, each `(blocks, words)` of 8 or 1 bytes, and where they start in a slot (in words)."""

    rows: list[torch.Tensor]
    offsets: list[int]
    payload: int
    """Bytes of a block over all layers."""


def lay_out(caches: Mapping[str, Any], groups: Sequence[Sequence[str]], blocks: int) -> list[GroupLayout]:
    """The layout of each group, named by its layers. Raises UnfitLayoutError."""
    rows = [[_rows(name, caches[name], blocks) for name in layers if name in caches] for layers in groups]
    is_wide = all(row.shape[1] % 8 == 0 and row.storage_offset() % 8 == 0 for group in rows for row in group)
    is_wide = is_wide and all(row.stride(0) % 8 == 0 and row.data_ptr() % 8 == 0 for group in rows for row in group)
    return [_group([row.view(torch.int64) if is_wide else row for row in group]) for group in rows]


def _group(rows: list[torch.Tensor]) -> GroupLayout:
    if not rows:
        raise UnfitLayoutError("a group has no layer with a cache")
    offsets, end = [], 0
    for row in rows:
        offsets.append(end)
        end += row.shape[1]
    return GroupLayout(rows, offsets, end * rows[0].element_size())


def _rows(name: str, cache: Any, blocks: int) -> torch.Tensor:
    """A layer's cache as `(blocks, bytes)`."""
    if not isinstance(cache, torch.Tensor):
        raise UnfitLayoutError(f"the cache of {name} is not one tensor: states of recurrent layers are not shared")
    if cache.shape[0] == 0 or cache.shape[0] % blocks:
        raise UnfitLayoutError(f"the cache of {name} has shape {tuple(cache.shape)}, not {blocks} blocks first")
    width = cache.element_size()
    inner = sorted((stride, size) for stride, size in zip(cache.stride()[1:], cache.shape[1:], strict=True) if size > 1)
    expected = 1
    for stride, size in inner:
        if stride != expected:
            raise UnfitLayoutError(
                f"the cache of {name} scatters a block: strides {cache.stride()}, shape {cache.shape}"
            )
        expected *= size
    pieces = cache.shape[0] // blocks
    if pieces > 1 and cache.stride(0) != expected:
        raise UnfitLayoutError(f"the cache of {name} scatters a block over {pieces} pieces")
    raw = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
    size = expected * pieces * width
    return raw.as_strided((blocks, size), (cache.stride(0) * pieces * width, 1), cache.storage_offset() * width)
