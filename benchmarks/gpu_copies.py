"""Proves the copies between a device's KV caches and host memory, and times them. Needs torch, and no vLLM.

`gpu_copies.py DEVICE` proves them on a device, which may be `cpu`: each block's bytes arrive, whatever the layout and
the dtype, although the blocks are overwritten right after; and nothing else is touched. On a GPU all of it runs on a
stream of its own, behind work that holds it up, and rates beside a plain copy of as many bytes are printed.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from mooncake_store_connector.agent.arena import Arena, slot_size_for
from mooncake_store_connector.frames import TRAILER
from mooncake_store_connector.v1.copies import DeviceCopies, HostCopies
from mooncake_store_connector.v1.layout import GroupLayout, lay_out

BLOCKS: Final = 24
LAYERS: Final = 3
ROUNDS: Final = 9
# So that other work on the GPU is still under way when a copy is asked for; cycles.
_HOLD_UP: Final = 30_000_000
DTYPES: Final = ("bfloat16", "float16", "float32", "float8_e4m3fn", "uint8")

Caches = dict[str, torch.Tensor]
Make = Callable[[torch.dtype, str], Caches]


def _separate(dtype: torch.dtype, device: str) -> Caches:
    """A tensor for each layer, keys beside values."""
    return {f"layer{i}": _random((BLOCKS, 2, 4, 16, 8), dtype, device) for i in range(LAYERS)}


def _packed(dtype: torch.dtype, device: str) -> Caches:
    """All layers of a block beside each other: a layer's rows have gaps."""
    whole = _random((BLOCKS, LAYERS, 4, 16, 8), dtype, device)
    return {f"layer{i}": whole[:, i] for i in range(LAYERS)}


def _permuted(dtype: torch.dtype, device: str) -> Caches:
    """Heads and tokens in another order than the memory's."""
    return {f"layer{i}": _random((BLOCKS, 4, 16, 8), dtype, device).transpose(1, 2) for i in range(LAYERS)}


def _pieces(dtype: torch.dtype, device: str) -> Caches:
    """Kernels with smaller blocks than the engine's."""
    return {f"layer{i}": _random((2 * BLOCKS, 8, 40), dtype, device) for i in range(LAYERS)}


def _odd(dtype: torch.dtype, device: str) -> Caches:
    """Blocks that are no whole number of words of eight bytes."""
    return {f"layer{i}": _random((BLOCKS, 3, 5), dtype, device) for i in range(LAYERS)}


LAYOUTS: Final[Mapping[str, Make]] = {
    "separate": _separate,
    "packed": _packed,
    "permuted": _permuted,
    "pieces": _pieces,
    "odd": _odd,
}


def main() -> int:
    """Prove, and time on a GPU. 1 if a byte is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    device = parser.parse_args().device
    if device != "cpu" and not torch.cuda.is_available():
        print("gpu-check: not run: torch sees no GPU")
        return 0
    wrong = [f"{layout} {dtype}" for layout in LAYOUTS for dtype in DTYPES if not prove(layout, dtype, device)]
    cases = len(LAYOUTS) * len(DTYPES)
    print(f"{cases - len(wrong)} of {cases} layouts and dtypes are bit-equal on {device}", *wrong, sep="\n  wrong: ")
    if device == "cpu":
        return bool(wrong)
    print(f"host memory is page-locked: {is_pinned(device)}")
    print(f"memory at a former address is right: {all(prove('separate', 'bfloat16', device) for _ in range(20))}")
    measure(device)
    return bool(wrong)


def prove(layout: str, dtype: str, device: str) -> bool:
    """Whether blocks come through host memory into other blocks as they were."""
    draw = random.Random(f"{layout}{dtype}")
    from_blocks, to_blocks = (draw.sample(range(BLOCKS), 13) for _ in range(2))
    with _stream(device):
        source, target = (LAYOUTS[layout](getattr(torch, dtype), device) for _ in range(2))
        kept = {name: _bytes(cache) for name, cache in source.items()}
        before = {name: _bytes(cache) for name, cache in target.items()}
        rows = _lay_out(source)
        arena = _arena(rows, 40)
        # A buffer of five rows: the blocks take several pieces.
        copies = DeviceCopies(rows, arena, 5 * arena.slot_size)
        expected = _gathered_on_host(source, from_blocks)
        _write_late(source, device)
        copies.gather(0, from_blocks, 7)
        _clear(source)
        gathered = [bytes(arena.slot(7 + index)[: rows[0].payload]) for index in range(len(from_blocks))]
        order = draw.sample(range(len(from_blocks)), len(from_blocks))
        slots = [7 + index for index in order]
        DeviceCopies(_lay_out(target), arena, 5 * arena.slot_size).scatter(0, to_blocks, slots)
        moved = {to: from_blocks[index] for to, index in zip(to_blocks, order, strict=True)}
        return gathered == expected and all(
            _block(_bytes(cache), block).equal(
                _block(kept[name], moved[block]) if block in moved else _block(before[name], block)
            )
            for name, cache in target.items()
            for block in range(BLOCKS)
        )


def is_pinned(device: str) -> bool:
    """Whether the driver knows the shared memory."""
    rows = _lay_out(_separate(torch.bfloat16, device))
    return bool(DeviceCopies(rows, _arena(rows, 8))._slots.is_pinned())


def measure(device: str) -> None:
    """Rates of both directions, each beside one copy of as many bytes between the device and page-locked memory."""
    count, layers = 256, 32
    caches = {f"layer{i}": _random((2 * count, 2, 16, 8, 128), torch.bfloat16, device) for i in range(layers)}
    rows = lay_out(caches, [list(caches)], 2 * count)
    arena = _arena(rows, count)
    copies = DeviceCopies(rows, arena)
    size = count * rows[0].payload
    there = torch.empty(size, dtype=torch.uint8, device=device)
    here = torch.empty(size, dtype=torch.uint8).pin_memory()
    blocks = random.Random(1).sample(range(2 * count), count)
    arms: dict[str, Callable[[], Any]] = {
        "gather": lambda: copies.gather(0, blocks, 0),
        "plain to host": lambda: here.copy_(there, non_blocking=True),
        "scatter": lambda: copies.scatter(0, blocks, range(count)),
        "plain to device": lambda: there.copy_(here, non_blocking=True),
    }
    rates = _time(arms, size)
    for ours, plain in (("gather", "plain to host"), ("scatter", "plain to device")):
        ratio = statistics.median(a / b for a, b in zip(rates[ours], rates[plain], strict=True))
        print(f"{ours}: {_spread(rates[ours])} GB/s, {plain}: {_spread(rates[plain])} GB/s, ratio {ratio:.2f}")


def _time(arms: Mapping[str, Callable[[], Any]], size: int) -> dict[str, list[float]]:
    """GB/s of each arm in each round; all arms run in each round, in an order drawn anew. The first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(ROUNDS + 1):
        for name in random.sample(list(arms), len(arms)):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            arms[name]()
            torch.cuda.synchronize()
            if turn:
                rates[name].append(size / (time.perf_counter() - begin) / 1e9)
    return rates


def _spread(rates: list[float]) -> str:
    return f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"


@contextmanager
def _stream(device: str) -> Iterator[None]:
    """On a GPU: a stream of its own."""
    if device == "cpu":
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


def _write_late(caches: Caches, device: str) -> None:
    """Write what lies in the caches once more: on a GPU behind work that takes a while, so that it is not yet there."""
    copies = {name: _raw(cache).clone() for name, cache in caches.items()}
    _clear(caches)
    if device != "cpu":
        torch.cuda._sleep(_HOLD_UP)
    for name, cache in caches.items():
        _raw(cache).copy_(copies[name])


def _clear(caches: Caches) -> None:
    for cache in caches.values():
        _raw(cache).zero_()


def _lay_out(caches: Caches) -> list[GroupLayout]:
    return lay_out(caches, [list(caches)], BLOCKS)


def _arena(rows: list[GroupLayout], count: int) -> Arena:
    arena, descriptor = Arena.create(slot_size_for(rows[0].payload, TRAILER), count)
    os.close(descriptor)
    return arena


def _gathered_on_host(caches: Caches, blocks: list[int]) -> list[bytes]:
    """What the copies for caches in host memory make of them."""
    rows = [GroupLayout([row.cpu() for row in one.rows], one.offsets, one.payload) for one in _lay_out(caches)]
    arena = _arena(rows, len(blocks))
    HostCopies(rows, arena).gather(0, blocks, 0)
    return [bytes(arena.slot(index)[: rows[0].payload]) for index in range(len(blocks))]


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Any bytes at all, so that each is told from each."""
    size = dtype.itemsize
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, device=device)
    return raw.view(dtype)


def _raw(cache: torch.Tensor) -> torch.Tensor:
    """A cache's elements as numbers that are compared bit by bit."""
    return cache.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache.dtype.itemsize])


def _bytes(cache: torch.Tensor) -> torch.Tensor:
    """A copy of a cache in host memory, in the order of its indices."""
    return _raw(cache).clone(memory_format=torch.contiguous_format).cpu()


def _block(cache: torch.Tensor, block: int) -> torch.Tensor:
    return cache.reshape(BLOCKS, -1)[block]


if __name__ == "__main__":
    sys.exit(main())
