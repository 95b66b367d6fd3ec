"""Memory that values are written in and read into, known to the store's client so that it transfers from there."""

import logging
from typing import Any, Final

import torch

from mooncake_store_connector.v0.values import ALIGNMENT

logger = logging.getLogger("vllm.mooncake_store_connector.v0")

_STEP: Final = 2 << 20
# Registering is slow with RDMA, so a buffer that is too small grows by more than what is missing.
_GROWTH: Final = 1.5


class StagingError(Exception):
    """There is no memory that the client can transfer from."""


class Staging:
    """One buffer, as large as the largest need so far. Each `take` gives the same memory: its users take turns."""

    def __init__(self, client: Any, *, pinned: bool) -> None:
        self._client = client
        self._pinned = pinned
        self._buffer: torch.Tensor | None = None

    def take(self, size: int) -> torch.Tensor:
        """Bytes on the CPU, aligned for every dtype. Raises StagingError."""
        if self._buffer is None or len(self._buffer) < size:
            grown = int(len(self._buffer) * _GROWTH) if self._buffer is not None else 0
            self.close()
            self._buffer = self._register(-(-max(size, grown) // _STEP) * _STEP)
        return self._buffer[:size]

    def close(self) -> None:
        """Give the memory back."""
        if self._buffer is not None:
            self._client.unregister_buffer(self._buffer.data_ptr())
            self._buffer = None

    def _register(self, size: int) -> torch.Tensor:
        try:
            memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8, pin_memory=self._pinned)
        except RuntimeError as error:
            raise StagingError(f"{size} bytes of memory for transfers cannot be had: {error}") from error
        buffer = memory[-memory.data_ptr() % ALIGNMENT :][:size]
        code = self._client.register_buffer(buffer.data_ptr(), size)
        if code != 0:
            raise StagingError(f"registering {size} bytes for transfers failed with code {code}")
        return buffer
