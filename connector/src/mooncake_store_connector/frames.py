"""The form of a stored object: the payload, then a trailer by which the payload proves itself.

A result code proves nothing: objects can be half written, of another model, or damaged. The trailer says how long the
payload is, what its checksum is and under which key it was stored, and has a checksum of its own.
"""

import struct
from enum import Enum
from typing import Final

import xxhash

from mooncake_store_connector.checksum import checksum

TRAILER: Final = 64
"""Bytes after the payload. A multiple of what transfers like to be aligned to."""
VERSION: Final = 1
_MAGIC: Final = b"MSKV"
# magic, version, reserved, payload length, payload checksum, digest of the key
_FIELDS: Final = struct.Struct("<4sHHQQ16s")
_SEAL: Final = struct.Struct("<Q")


class Fault(Enum):
    """Why an object is not what it should be."""

    MAGIC = "magic"
    SEAL = "seal"
    VERSION = "version"
    LENGTH = "length"
    KEY = "key"
    CHECKSUM = "checksum"


def seal(slot: memoryview, payload: int, key: str) -> None:
    """Write the trailer behind the first `payload` bytes of `slot`, which has room for it."""
    fields = _FIELDS.pack(_MAGIC, VERSION, 0, payload, checksum(slot[:payload]), _digest(key))
    trailer = fields + _SEAL.pack(checksum(fields))
    slot[payload : payload + TRAILER] = trailer.ljust(TRAILER, b"\0")


def find_fault(slot: memoryview, payload: int, key: str) -> Fault | None:
    """What is wrong with the object in `slot`, whose payload should be `payload` bytes; None when it is proven."""
    trailer = slot[payload : payload + TRAILER]
    magic, version, _, length, proof, digest = _FIELDS.unpack_from(trailer)
    if magic != _MAGIC:
        return Fault.MAGIC
    if checksum(trailer[: _FIELDS.size]) != _SEAL.unpack_from(trailer, _FIELDS.size)[0]:
        return Fault.SEAL
    if version != VERSION:
        return Fault.VERSION
    if length != payload:
        return Fault.LENGTH
    if digest != _digest(key):
        return Fault.KEY
    return None if checksum(slot[:payload]) == proof else Fault.CHECKSUM


def _digest(key: str) -> bytes:
    return xxhash.xxh3_128_digest(key.encode())
