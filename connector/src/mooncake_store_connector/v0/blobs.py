"""The form of a value in the store: a safetensors file. Its header is written and read here. Pure, and without torch.

A file is the header's length (8 bytes, little endian), the header (JSON, padded with spaces to a multiple of 8), and
the tensors' bytes one after another. The safetensors library orders tensors by dtype, the widest first, then by name.
Bytes written here are those that the library would write; that way values are equal whoever wrote them.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_LENGTH_BYTES: Final = 8
# Ours take some hundred bytes. The library would read up to 100 MB.
_LONGEST_HEADER: Final = 1 << 20
_METADATA: Final = "__metadata__"
# In the order of the library's own list of dtypes; bytes for each element.
DTYPE_BYTES: Final = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
_ORDER: Final = {name: place for place, name in enumerate(DTYPE_BYTES)}


class BadBlobError(Exception):
    """Bytes that are no value of this format, or not a whole one. The text says why."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file. `begin` and `end` are offsets in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Layout:
    """A file's header, and where its tensors are, in the order in which they lie there."""

    header: bytes
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    size: int

    @property
    def data_begin(self) -> int:
        """Where the tensors' bytes begin."""
        return len(self.header)


def plan_layout(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> Layout:
    """The layout of a file with these tensors, each a dtype and a shape.

    Texts in `metadata` stand in the header in the order given. (The library writes them in no certain order.)
    """
    document: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    placed, offset = {}, 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-_ORDER[item[1][0]], item[0].encode())):
        end = offset + math.prod(shape) * DTYPE_BYTES[dtype]
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        placed[name] = (dtype, shape, offset, end)
        offset = end
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    entries = {
        name: Entry(dtype, shape, len(header) + begin, len(header) + end)
        for name, (dtype, shape, begin, end) in placed.items()
    }
    return Layout(header, entries, dict(metadata or {}), len(header) + offset)


def read_layout(blob: memoryview) -> Layout:
    """The layout of a file. Raises BadBlobError unless its tensors cover the rest of it, without gap or overlap."""
    length = int.from_bytes(blob[:_LENGTH_BYTES], "little") if len(blob) >= _LENGTH_BYTES else 0
    if not 0 < length <= min(len(blob) - _LENGTH_BYTES, _LONGEST_HEADER):
        raise BadBlobError(f"{len(blob)} bytes cannot hold a header of {length}")
    header = bytes(blob[: _LENGTH_BYTES + length])
    document = _parse(header[_LENGTH_BYTES:])
    metadata = document.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadBlobError("its metadata are not texts by name")
    entries = {name: _read_entry(name, entry, len(header)) for name, entry in document.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_cover(ordered.values(), len(header), len(blob))
    return Layout(header, ordered, metadata, len(blob))


def _parse(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadBlobError(f"its header is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadBlobError("its header is not a JSON object")
    return document


def _read_entry(name: str, entry: object, data_begin: int) -> Entry:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES or shape is None or offsets is None:
        raise BadBlobError(f"its header does not say what {name!r} is")
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise BadBlobError(f"the size of {name!r} does not fit its shape")
    return Entry(dtype, shape, data_begin + offsets[0], data_begin + offsets[1])


def _sizes(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(number) is int and number >= 0 for number in value):
        return tuple(value)
    return None


def _check_cover(entries: Iterable[Entry], begin: int, end: int) -> None:
    for entry in entries:
        if entry.begin != begin:
            raise BadBlobError("its tensors overlap, or leave a gap")
        begin = entry.end
    if begin != end:
        raise BadBlobError(f"its tensors end at {begin}, but it has {end} bytes")
