"""What a value holds: one tensor, or the named tensors of a pipeline stage; beside them the sender's device.

Here tensors meet the format of `blobs`: a value is written into memory, and read from memory without copying it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch

from mooncake_store_connector.checksum import checksum
from mooncake_store_connector.v0.blobs import BadBlobError, Entry, Layout, plan_layout, read_layout
from mooncake_store_connector.v0.guard import PairGuard

TENSOR: Final = "tensor"
DEVICE_ID: Final = "device_id"
CPU_ID: Final = -1
# Named tensors of a stage have this before their names, so that no name clashes with the two above.
_NAMED: Final = "intermediate."
ALIGNMENT: Final = 64

_NAMES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}
_DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True)
class Part:
    """A tensor to be written: what it is, and how its elements get into memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    fill: Callable[[torch.Tensor], object]
    """Writes the elements into a tensor of that dtype and shape, on the CPU."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Part":
        """A part that copies a tensor."""
        tensor = tensor.detach()
        return cls(tensor.dtype, tuple(tensor.shape), lambda target: target.copy_(tensor, non_blocking=True))


@dataclass(frozen=True)
class Outgoing:
    """A value to be written. `device_id` is the CUDA index of where its tensors are, or -1 for the CPU."""

    parts: Mapping[str, Part]
    device_id: int
    guard: PairGuard | None = None

    @classmethod
    def of_tensor(cls, part: Part, device: torch.device, guard: PairGuard | None = None) -> "Outgoing":
        """The value of one tensor."""
        return cls({TENSOR: part}, _id_of(device), guard)

    @classmethod
    def of_named(cls, tensors: Mapping[str, torch.Tensor], guard: PairGuard | None = None) -> "Outgoing":
        """The value of a stage's named tensors."""
        device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        return cls({_NAMED + name: Part.of(tensor) for name, tensor in tensors.items()}, _id_of(device), guard)

    @cached_property
    def layout(self) -> Layout:
        """Where its tensors lie in the file. Raises TypeError for a dtype that safetensors does not have."""
        if unknown := [part.dtype for part in self.parts.values() if part.dtype not in _NAMES]:
            raise TypeError(f"{unknown[0]} cannot be stored")
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (_NAMES[part.dtype], part.shape) for name, part in self.parts.items()
        }
        return plan_layout({**tensors, DEVICE_ID: ("I32", ())}, self.guard.metadata(0) if self.guard else None)

    @property
    def lead(self) -> int:
        """How many bytes to leave before the file, so that its first tensor is aligned."""
        return -next(entry.begin for name, entry in self.layout.entries.items() if name != DEVICE_ID) % ALIGNMENT

    def write(self, memory: torch.Tensor) -> None:
        """Write the file into bytes on the CPU, as many as it has."""
        layout = self.layout
        for name, part in self.parts.items():
            part.fill(_view(memory, layout.entries[name]))
        _view(memory, layout.entries[DEVICE_ID]).fill_(self.device_id)
        if self.device_id != CPU_ID:
            torch.cuda.current_stream(self.device_id).synchronize()
        header = layout.header
        if self.guard:
            # The checksum is known only now; the header's length does not depend on it.
            metadata = self.guard.metadata(checksum(_bytes(memory[layout.data_begin :])))
            header = plan_layout(
                {name: (entry.dtype, entry.shape) for name, entry in layout.entries.items()}, metadata
            ).header
        memory[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)


@dataclass(frozen=True)
class Incoming:
    """A value that was read. Its tensors lie in the memory that it was read from."""

    tensors: Mapping[str, torch.Tensor]
    is_named: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    data: torch.Tensor | None = None
    """The bytes of all its tensors, as they lie in the file."""

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor, of a value that has one."""
        return None if self.is_named else self.tensors[TENSOR]

    def checksum(self) -> int:
        """The checksum of the tensors' bytes."""
        return checksum(_bytes(self.data)) if self.data is not None else 0


def read_value(memory: torch.Tensor) -> Incoming:
    """Read a file from bytes on the CPU. Raises BadBlobError."""
    layout = read_layout(_bytes(memory))
    entries = dict(layout.entries)
    device = entries.pop(DEVICE_ID, None)
    if device is None or (device.dtype, device.shape) != ("I32", ()):
        raise BadBlobError("it does not tell the sender's device")
    is_named = entries.keys() != {TENSOR}
    if is_named and not (entries and all(name.startswith(_NAMED) for name in entries)):
        raise BadBlobError(f"it holds {', '.join(entries) or 'no tensor'}")
    tensors = {name.removeprefix(_NAMED) if is_named else name: _view(memory, entry) for name, entry in entries.items()}
    return Incoming(tensors, is_named, layout.metadata, memory[layout.data_begin :])


def _id_of(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_ID
    return int(device.index if device.index is not None else torch.cuda.current_device())


def _view(memory: torch.Tensor, entry: Entry) -> torch.Tensor:
    """The tensor of an entry, on the memory of its file. Copied if it lies where its dtype cannot."""
    piece = memory[entry.begin : entry.end]
    dtype = _DTYPES[entry.dtype]
    if piece.storage_offset() % dtype.itemsize:
        piece = piece.clone()
    return piece.view(dtype).view(entry.shape)


def _bytes(memory: torch.Tensor) -> memoryview:
    return memoryview(memory.numpy())
