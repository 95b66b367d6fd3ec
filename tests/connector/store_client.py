"""A Mooncake client in a process of its own: reads a JSON call a line, writes its result a line. Knows no pytest."""

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
    return getattr(store, method)(*arguments)


if __name__ == "__main__":
    main()
