"""Names of objects in the store, and what is known to be wrong with some of them."""

import threading
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

_BAD_SECONDS: Final = 10.0
_BAD_KEYS: Final = 65536


@dataclass(frozen=True)
class Names:
    """Names of one engine's objects. `ranks` are the engine's, in a fixed order."""

    namespace: str
    ranks: tuple[str, ...]

    def key(self, epoch: int, rank: str, group: int, block_hash: bytes) -> str:
        """The object of a block on one rank."""
        return f"{self.namespace}:{epoch}:{rank}:{group}:{block_hash.hex()}"


class Part(NamedTuple):
    """What a key names: a block's part on one rank."""

    epoch: int
    rank: str
    group: int
    block_hash: bytes


def part_of(key: str) -> Part:
    """The reverse of `Names.key`. A namespace may have colons of its own."""
    _, epoch, rank, group, block_hash = key.rsplit(":", 4)
    return Part(int(epoch), rank, int(group), bytes.fromhex(block_hash))


class BadKeys:
    """Keys that failed lately: a miss for everybody, for a while. Bounded, and safe to use from several threads."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, key: str) -> bool:
        """A key failed. False if it was known."""
        now = time.monotonic()
        with self._lock:
            is_new = self._until.get(key, 0.0) < now
            self._until[key] = now + _BAD_SECONDS
            if len(self._until) > _BAD_KEYS:
                self._forget(now)
            return is_new

    def clear(self, key: str) -> None:
        """A key was put well."""
        if key in self._until:
            with self._lock:
                self._until.pop(key, None)

    def has(self, key: str) -> bool:
        """Whether it failed lately."""
        until = self._until.get(key)
        return until is not None and until > time.monotonic()

    def _forget(self, now: float) -> None:
        """Drop what is over; if nothing is, the oldest half."""
        alive = {key: until for key, until in self._until.items() if until > now}
        if len(alive) > _BAD_KEYS:
            alive = dict(sorted(alive.items(), key=lambda item: item[1])[len(alive) // 2 :])
        self._until = alive
