"""Copies between an engine's blocks and slots of host memory, many blocks at once.

On CPUs a gather is one `index_select` per layer straight into the slots (25 GB/s on two cores), and a scatter one
assignment by numpy, whose rows are copied as wholes (torch's own `index_copy_` is forty times slower there).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.v1.layout import GroupLayout


class Copies(Protocol):
    """Both directions. When a call returns, its slots may be read or reused."""

    def gather(self, group: int, blocks: Sequence[int], first_slot: int) -> None:
        """Copy blocks into consecutive slots."""

    def scatter(self, group: int, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy slots into blocks."""


class HostCopies:
    """Copies for caches in host memory."""

    def __init__(self, layouts: Sequence[GroupLayout], arena: Arena) -> None:
        self._layouts = layouts
        word = layouts[0].rows[0]
        self._slots = torch.frombuffer(arena.memory, dtype=word.dtype).view(arena.count, -1)
        self._slots_array = self._slots.numpy()
        self._arrays = [[row.numpy() for row in layout.rows] for layout in layouts]

    def gather(self, group: int, blocks: Sequence[int], first_slot: int) -> None:
        """Copy blocks into consecutive slots."""
        layout = self._layouts[group]
        index = torch.tensor(blocks, dtype=torch.int64)
        slots = self._slots[first_slot : first_slot + len(blocks)]
        for row, offset in zip(layout.rows, layout.offsets, strict=True):
            torch.index_select(row, 0, index, out=slots[:, offset : offset + row.shape[1]])

    def scatter(self, group: int, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy slots into blocks."""
        index = np.asarray(blocks, dtype=np.int64)
        first, count = slots[0], len(slots)
        # Consecutive slots are read in place; others are gathered on the way.
        is_run = list(slots) == list(range(first, first + count))
        chosen = slice(first, first + count) if is_run else np.asarray(slots, dtype=np.int64)
        for array, offset in zip(self._arrays[group], self._layouts[group].offsets, strict=True):
            array[index] = self._slots_array[chosen, offset : offset + array.shape[1]]


class DeviceCopies:
    """Copies for caches on a device, through pinned memory, in the order of the device's current stream.

    A gather waits until its bytes are in host memory: the engine's blocks may be reused right after, and the agent may
    read. A scatter waits as well, so that its slots may be reused.
    """

    def __init__(self, layouts: Sequence[GroupLayout], arena: Arena) -> None:
        self._layouts = layouts
        word = layouts[0].rows[0]
        self._device = word.device
        host = torch.frombuffer(arena.memory, dtype=word.dtype)
        _pin(host)
        self._slots = host.view(arena.count, -1)

    def gather(self, group: int, blocks: Sequence[int], first_slot: int) -> None:
        """Copy blocks into consecutive slots."""
        layout = self._layouts[group]
        index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        words = sum(row.shape[1] for row in layout.rows)
        packed = torch.empty((len(blocks), words), dtype=layout.rows[0].dtype, device=self._device)
        for row, offset in zip(layout.rows, layout.offsets, strict=True):
            torch.index_select(row, 0, index, out=packed[:, offset : offset + row.shape[1]])
        self._slots[first_slot : first_slot + len(blocks), :words].copy_(packed, non_blocking=True)
        _synchronise(self._device)

    def scatter(self, group: int, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy slots into blocks."""
        layout = self._layouts[group]
        words = sum(row.shape[1] for row in layout.rows)
        index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        packed = torch.empty((len(blocks), words), dtype=layout.rows[0].dtype, device=self._device)
        for start, end in _runs(slots):
            packed[start:end].copy_(self._slots[slots[start] : slots[end - 1] + 1, :words], non_blocking=True)
        for row, offset in zip(layout.rows, layout.offsets, strict=True):
            row.index_copy_(0, index, packed[:, offset : offset + row.shape[1]])
        _synchronise(self._device)


def copies_for(layouts: Sequence[GroupLayout], arena: Arena) -> Copies:
    """The copies that fit where the caches are."""
    on_host = layouts[0].rows[0].device.type == "cpu"
    return HostCopies(layouts, arena) if on_host else DeviceCopies(layouts, arena)


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of indices over which slots follow each other."""
    starts = [0, *(i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1)]
    return list(zip(starts, [*starts[1:], len(slots)], strict=True))


def _pin(host: torch.Tensor) -> None:
    """Page-lock memory that was not allocated by torch. Without it copies are slower, and still right."""
    if torch.cuda.is_available():
        torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel() * host.element_size(), 0)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
