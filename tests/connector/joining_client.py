"""A `JoiningStore` over the real client, in a process of its own: a JSON call a line, a result a line."""

import ctypes
import json
import os
import sys
from typing import Any

from mooncake.store import MooncakeDistributedStore
from mooncake_store_connector.joining import JoiningStore

SIZE = 4096


class Blocks:
    """Saves and loads blocks of SIZE bytes, each in two pieces, through one registered buffer."""

    def __init__(self, namespace: str) -> None:
        self._store = JoiningStore(MooncakeDistributedStore, namespace, retry_seconds=0.2)
        self._buffer = (ctypes.c_char * SIZE)()
        self._address = ctypes.addressof(self._buffer)

    def setup(self, *arguments: Any) -> list[int]:
        return [self._store.setup(*arguments), self._store.register_buffer(self._address, SIZE)]

    def save(self, key: str, letter: str) -> int:
        self._buffer.raw = letter.encode() * SIZE
        return self._store.batch_put_from_multi_buffers([key], *self._pieces(SIZE))[0]

    def load(self, key: str, size: int = SIZE) -> list[Any]:
        """The code, and the letter that the whole block is made of."""
        self._buffer.raw = b"-" * SIZE
        code = self._store.batch_get_into_multi_buffers([key], *self._pieces(size))[0]
        letters = set(self._buffer.raw.decode())
        return [code, letters.pop() if len(letters) == 1 else ""]

    def exist(self, *keys: str) -> list[int]:
        return self._store.batch_is_exist(list(keys))

    def usable(self) -> bool:
        return self._store.is_usable

    def remove_all(self) -> int:
        return self._store.remove_all(True)

    def close(self) -> int:
        return self._store.close()

    def _pieces(self, size: int) -> tuple[list[list[int]], list[list[int]]]:
        half = SIZE // 2
        return [[self._address, self._address + half]], [[half, size - half]]


def main() -> None:
    """Serve calls until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    blocks = Blocks(sys.argv[1])
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        replies.write(json.dumps(getattr(blocks, method)(*arguments)) + "\n")
        replies.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
