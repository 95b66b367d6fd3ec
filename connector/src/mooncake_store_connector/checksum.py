"""The checksum of what lies in the store: XXH3, 64 bits. It finds damage, not forgery."""

import xxhash


def checksum(data: bytes | bytearray | memoryview) -> int:
    """XXH3-64 of the bytes, as an unsigned integer."""
    return xxhash.xxh3_64_intdigest(data)
