"""Host memory that a worker shares with its agent: slots of one size, each with room for one object.

It is a nameless file of the kernel's (memfd), handed over as a descriptor: nothing is left behind when both are gone,
and the size of /dev/shm does not matter.
"""

import ctypes
import mmap
import os
from typing import Final

ALIGNMENT: Final = 4096


class Arena:
    """`count` slots of `slot_size` bytes. `slot_size` is a multiple of `ALIGNMENT`."""

    def __init__(self, descriptor: int, slot_size: int, count: int) -> None:
        """Map the memory behind `descriptor`, which stays the caller's."""
        self.slot_size = slot_size
        self.count = count
        self.memory = mmap.mmap(descriptor, slot_size * count)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._view = memoryview(self.memory)

    @classmethod
    def create(cls, slot_size: int, count: int) -> tuple["Arena", int]:
        """New memory, zero and not yet backed by pages, and its descriptor."""
        descriptor = os.memfd_create("mooncake-store-arena", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, slot_size * count)
        return cls(descriptor, slot_size, count), descriptor

    @property
    def size(self) -> int:
        """Bytes."""
        return self.slot_size * self.count

    def slot(self, index: int) -> memoryview:
        """The slot's memory, to read and write."""
        return self._view[index * self.slot_size : (index + 1) * self.slot_size]

    def slot_address(self, index: int) -> int:
        """Where the slot starts in this process."""
        return self.address + index * self.slot_size


def slot_size_for(payload: int, trailer: int) -> int:
    """The size of a slot that holds a payload and its trailer."""
    return -(-(payload + trailer) // ALIGNMENT) * ALIGNMENT
