"""Our connector, but it damages what it has loaded: after the proof, in the engine's own blocks.

What to damage is in the file that `KV_DAMAGE` names, which is read at every load: a JSON object with what to do and to
which block, layer or group. Blocks are counted in the order of a load's plan, layers through all groups.

Two blocks of one prompt are never swapped: full attention reads a set of keys, each with its position in it, and does
not see the difference. So a block is swapped for that of another prompt: of the first that was loaded under this
damage, which itself stays whole.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from mooncake_store_connector.v1 import connector
from mooncake_store_connector.v1.plans import LoadPlan

_ENV = "KV_DAMAGE"
# Of a token's latent KV (MLA), 512 numbers are content and 64 its position.
_LATENT, _POSITION = 512, 64


class MooncakeStoreConnector(connector.MooncakeStoreConnector):
    """Found by vLLM under the name of the real one."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load, then damage."""
        super().start_load_kv(forward_context, **kwargs)
        metadata = self._get_connector_metadata()
        if self._worker is None or not metadata.plan.loads:
            return
        wish = json.loads(Path(os.environ[_ENV]).read_text())
        if wish != getattr(self, "_wish", None):
            self._wish: dict[str, Any] = wish
            self._first: list[torch.Tensor] | None = None
        for load in metadata.plan.loads:
            self._damage(load)

    def _damage(self, load: LoadPlan) -> None:
        match self._wish:
            case {"zero": "block", "at": at} if at < len(load.blocks):
                for row in self._rows(load.groups[at]):
                    row[load.blocks[at]] = 0
            case {"zero": "layer", "at": at}:
                group, row = self._layers()[at]
                row[_blocks(load, group)] = 0
            case {"zero": "group", "at": at}:
                for row in self._rows(at):
                    row[_blocks(load, at)] = 0
            case {"swap": "block", "at": at} if at < len(load.blocks):
                self._swap_with_first(load, at)
            case {"swap": "layer", "at": at}:
                (group, row), (other_group, other) = self._layers()[at : at + 2]
                _swap(row, _blocks(load, group), other, _blocks(load, other_group))
            case {"swap": "group", "at": at}:
                for row, other in zip(self._rows(at), self._rows(at + 1), strict=True):
                    _swap(row, _blocks(load, at), other, _blocks(load, at + 1))
            case {"swap": "halves", "at": at} if at < len(load.blocks):
                for row in self._rows(load.groups[at]):
                    self._swap_halves(load.groups[at], row[load.blocks[at]])

    def _rows(self, group: int) -> list[torch.Tensor]:
        """A group's layers, each as rows of blocks."""
        assert self._worker is not None
        return self._worker._layouts[group].rows

    def _layers(self) -> list[tuple[int, torch.Tensor]]:
        """All layers with the group of each."""
        groups = range(len(self._caches_config.kv_cache_groups))
        return [(group, row) for group in groups for row in self._rows(group)]

    def _swap_with_first(self, load: LoadPlan, at: int) -> None:
        found = [row[load.blocks[at]].clone() for row in self._rows(load.groups[at])]
        if self._first is None:
            self._first = found
            return
        for row, foreign in zip(self._rows(load.groups[at]), self._first, strict=True):
            row[load.blocks[at]] = foreign

    def _swap_halves(self, group: int, block: torch.Tensor) -> None:
        """Keys for values. A latent block has no such halves: its positions are lost."""
        spec = self._caches_config.kv_cache_groups[group].kv_cache_spec
        if "MLA" in type(spec).__name__:
            tokens = block.view(torch.float32).view(-1, _LATENT + _POSITION)
            tokens[:, _LATENT:] = 0
        else:
            halves = block.view(spec.num_kv_heads, 2, -1)
            halves.copy_(halves.flip(1))


def _blocks(load: LoadPlan, group: int) -> list[int]:
    return [block for block, own in zip(load.blocks, load.groups, strict=True) if own == group]


def _swap(row: torch.Tensor, blocks: list[int], other: torch.Tensor, other_blocks: list[int]) -> None:
    """Of as many blocks as both have, counted from the end, where windows are."""
    count = min(len(blocks), len(other_blocks))
    here, there = blocks[len(blocks) - count :], other_blocks[len(other_blocks) - count :]
    row[here], other[there] = other[there].clone(), row[here].clone()
