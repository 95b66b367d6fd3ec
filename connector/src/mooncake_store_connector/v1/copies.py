"""Copies between an engine's blocks and slots of host memory, many blocks at once.

On CPUs a gather is one `index_select` per layer straight into the slots (25 GB/s on two cores), and a scatter one
assignment by numpy, whose rows are copied as wholes (torch's own `index_copy_` is forty times slower there).
"""

import logging
import weakref
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import torch

from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.v1.layout import GroupLayout

logger = logging.getLogger("vllm.mooncake_store_connector")

_BUFFER_BYTES: Final = 64 << 20


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

    Blocks are packed on the device, into a buffer whose rows are as long as slots. So one transfer moves many slots,
    with what lies between them, straight from or to pinned memory: torch takes a detour for rows with gaps. The buffer
    is bounded, since an engine leaves little memory to others.

    A gather waits until its bytes are in host memory: the engine's blocks may be reused right after, and the agent may
    read. A scatter waits as well, so that its slots may be reused.
    """

    def __init__(self, layouts: Sequence[GroupLayout], arena: Arena, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._layouts = layouts
        word = layouts[0].rows[0]
        self._device = word.device
        host = torch.frombuffer(arena.memory, dtype=word.dtype)
        if _pin(host, self._device):
            # Before the memory is unmapped: the driver would take new memory at its address for the old.
            weakref.finalize(self, _unpin, host.data_ptr(), self._device).atexit = False
        self._slots = host.view(arena.count, -1)
        rows = max(1, min(arena.count, buffer_bytes // arena.slot_size))
        self._buffer = torch.empty((rows, self._slots.shape[1]), dtype=word.dtype, device=self._device)

    def gather(self, group: int, blocks: Sequence[int], first_slot: int) -> None:
        """Copy blocks into consecutive slots."""
        layout = self._layouts[group]
        index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        for start, end in _pieces(len(blocks), len(self._buffer)):
            packed = self._buffer[: end - start]
            for row, offset in zip(layout.rows, layout.offsets, strict=True):
                torch.index_select(row, 0, index[start:end], out=packed[:, offset : offset + row.shape[1]])
            self._slots[first_slot + start : first_slot + end].copy_(packed, non_blocking=True)
        _synchronise(self._device)

    def scatter(self, group: int, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy slots into blocks."""
        layout = self._layouts[group]
        index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        for start, end in _pieces(len(blocks), len(self._buffer)):
            packed = self._buffer[: end - start]
            for first, last in _runs(slots[start:end]):
                slot = slots[start + first]
                packed[first:last].copy_(self._slots[slot : slot + last - first], non_blocking=True)
            for row, offset in zip(layout.rows, layout.offsets, strict=True):
                row.index_copy_(0, index[start:end], packed[:, offset : offset + row.shape[1]])
        _synchronise(self._device)


def copies_for(layouts: Sequence[GroupLayout], arena: Arena) -> Copies:
    """The copies that fit where the caches are."""
    on_host = layouts[0].rows[0].device.type == "cpu"
    return HostCopies(layouts, arena) if on_host else DeviceCopies(layouts, arena)


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of indices over which slots follow each other."""
    starts = [0, *(i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1)]
    return list(zip(starts, [*starts[1:], len(slots)], strict=True))


def _pieces(count: int, size: int) -> list[tuple[int, int]]:
    """Ranges of at most `size` that make up `count`."""
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def _pin(host: torch.Tensor, device: torch.device) -> bool:
    """Page-lock memory that torch did not allocate; whether it is. Without it copies are slower, and still right."""
    if device.type != "cuda":
        return False
    # Any thread may ask: without its device, this would take memory of the first one.
    with torch.cuda.device(device):
        code = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel() * host.element_size(), 0)
    if int(code) != 0:
        logger.warning("Memory for KV cannot be page-locked (code %s); copies are slower", code)
    return int(code) == 0


def _unpin(address: int, device: torch.device) -> None:
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


def _synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).current_stream(device).synchronize()
