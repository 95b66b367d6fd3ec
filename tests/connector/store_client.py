"""A Mooncake client in a process of its own: reads a JSON call a line, writes its result a line. Knows no pytest."""

import ctypes
import json
import os
import sys
from typing import Any

from mooncake.store import MooncakeDistributedStore


def main() -> None:
    """Serve calls until standard input ends. A call is [method, arguments...]; bytes travel as text."""
    # Mooncake's own lines go to standard error, and so would anything that is printed by chance.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    store = MooncakeDistributedStore()
    for line in sys.stdin:
        replies.write(json.dumps(_call(store, *json.loads(line))) + "\n")
        replies.flush()
    os._exit(0)


def _call(store: Any, method: str, *arguments: Any) -> Any:
    if method == "put":
        return store.put(arguments[0], arguments[1].encode())
    if method == "get":
        return bytes(store.get(arguments[0])).decode()
    if method == "put_hex":
        return store.put(arguments[0], bytes.fromhex(arguments[1]))
    if method == "get_hex":
        return bytes(store.get(arguments[0])).hex()
    if method == "get_sized":
        return _get_sized(store, *arguments)
    if method == "put_range":
        return _put_range(store, *arguments)
    return getattr(store, method)(*arguments)


def _get_sized(store: Any, keys: list[str], size: int) -> list[Any]:
    """Each key's code for a destination of `size` bytes, and what lies in the destination then."""
    memory = ctypes.create_string_buffer(size * len(keys))
    places = [ctypes.addressof(memory) + size * index for index in range(len(keys))]
    codes = store.batch_get_into(keys, places, [size] * len(keys))
    parts = [memory.raw[size * index : size * (index + 1)] for index in range(len(keys))]
    return [list(codes), [part.hex() for part in parts]]


def _put_range(store: Any, key: str, data: str) -> int:
    """Write the first bytes of an object whose put session is open."""
    part = bytes.fromhex(data)
    memory = ctypes.create_string_buffer(part, len(part))
    place = [[ctypes.addressof(memory)]]
    return int(store.batch_put_from_multi_buffer_ranges([key], place, [[len(part)]], [[0]])[0])


if __name__ == "__main__":
    main()
