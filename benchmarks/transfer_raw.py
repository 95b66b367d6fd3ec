"""The bare arm of the transfer benchmark, in a process of its own: Mooncake's client alone, with the same bytes."""

import time
from typing import Final

import numpy as np
import torch
from connector.v0.worker import Raw, serve
from mooncake.store import ReplicateConfig

# The KV of SmolLM2-135M: 12 KiB for each layer and 16 tokens.
HEADS: Final = 3
HEAD_SIZE: Final = 64
LAYERS: Final = 30
DTYPE: Final = torch.bfloat16
_PIECE: Final = 32 << 20


def fresh_hashes(seed: int, count: int) -> list[bytes]:
    """Hashes of blocks that nobody has stored."""
    rows = np.random.default_rng(seed).bytes(32 * count)
    return [rows[start : start + 32] for start in range(0, len(rows), 32)]


class RawArm(Raw):
    """The same bytes, one contiguous object for each block, by one call of Mooncake's client."""

    def touch(self, size: int) -> None:
        """Write all the `size` bytes that the store has once, so that no put meets a page for the first time.

        Nothing may be asked that does not fit: the master would evict something later, when there is something again.
        """
        piece, count = torch.ones(_PIECE, dtype=torch.uint8), size // _PIECE
        assert self._store.register_buffer(piece.data_ptr(), _PIECE) == 0
        config = ReplicateConfig()
        # Else the first ones would be evicted to make room for the last.
        config.with_hard_pin = True
        for number in range(count):
            assert self._store.put_from(f"touch-{number}", piece.data_ptr(), _PIECE, config) == 0
        assert self.clear() == count
        assert self._store.unregister_buffer(piece.data_ptr()) == 0

    def prepare(self, block: int, count: int) -> None:
        """Make the buffers."""
        self._size = 2 * LAYERS * HEADS * HEAD_SIZE * block * DTYPE.itemsize
        self._count = count
        self._buffer = torch.randint(0, 255, (2 * count, self._size), dtype=torch.uint8)
        assert self._store.register_buffer(self._buffer.data_ptr(), self._buffer.nbytes) == 0

    def usable(self) -> bool:
        """It has joined."""
        return True

    def _places(self, seed: int, first: int) -> tuple[list[str], list[int], list[int]]:
        keys = [f"raw-{one.hex()}" for one in fresh_hashes(seed, self._count)]
        start = self._buffer.data_ptr() + first * self._size
        return keys, [start + index * self._size for index in range(self._count)], [self._size] * self._count

    def time_save(self, seed: int) -> float:
        """Put all objects; seconds."""
        places = self._places(seed, 0)
        begin = time.perf_counter()
        codes = self._store.batch_put_from(*places)
        seconds = time.perf_counter() - begin
        assert set(codes) == {0}
        return seconds

    def time_load(self, seed: int) -> float:
        """Get all objects; seconds."""
        self._buffer[self._count :] = 0
        places = self._places(seed, self._count)
        begin = time.perf_counter()
        counts = self._store.batch_get_into(*places)
        seconds = time.perf_counter() - begin
        assert set(counts) == {self._size}
        assert torch.equal(self._buffer[: self._count], self._buffer[self._count :])
        return seconds

    def clear(self) -> int:
        """Remove all objects, so that the store does not fill; how many there were."""
        return int(self._store.remove_all(True))


if __name__ == "__main__":
    serve(lambda _: RawArm())
