"""Bringing blocks from the store into host memory, each proven before it counts."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.agent.ledger import Ledger
from mooncake_store_connector.agent.link import StoreDownError, StoreLink
from mooncake_store_connector.agent.objects import BadKeys, Names
from mooncake_store_connector.agent.search import Place
from mooncake_store_connector.codes import TRANSFER_FAILED, Outcome, judge
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.frames import TRAILER, find_fault

logger = logging.getLogger("mooncake_store_connector")

_BATCH_BYTES: Final = 32 * 2**20


@dataclass
class Load:
    """Blocks of one request to be loaded: places, their hashes and the slots they go to, on every rank."""

    request: str
    places: list[Place]
    hashes: list[bytes]
    slots: list[int]
    epoch: int
    cancelled: threading.Event = field(default_factory=threading.Event)
    proven: set[Place] = field(default_factory=set)


@dataclass(frozen=True)
class _Item:
    """One object on its way: its place in the load, key, arena, slot, payload bytes, and when it was asked for."""

    index: int
    key: str
    arena: Arena
    slot: int
    payload: int
    asked: float


class Loader:
    """Loads for one engine. Stateless but for what it counts; used by several threads."""

    def __init__(
        self,
        link: StoreLink,
        names: Names,
        arenas: Sequence[Arena],
        payloads: Sequence[Sequence[int]],
        bad: BadKeys,
        ledger: Ledger,
        counters: Counters,
    ) -> None:
        """`payloads[rank][group]` is the number of bytes of a block."""
        self._link = link
        self._names = names
        self._arenas = arenas
        self._payloads = payloads
        self._bad = bad
        self._ledger = ledger
        self._counters = counters

    def run(self, load: Load, is_needed: Callable[[Place], bool]) -> None:
        """Load, and note in `load.proven` what is proven on all ranks. Raises nothing.

        Ends at the first block for which `is_needed` is true and that is missing: the rest is of no use then.
        """
        started = time.monotonic()
        try:
            for batch in self._batches(load):
                if load.cancelled.is_set():
                    return
                proven = self._run_batch(load, batch)
                load.proven |= {load.places[index] for index in proven}
                missing = (load.places[index] for index in batch if index not in proven)
                if any(is_needed(place) for place in missing):
                    return
        except StoreDownError:
            self._counters.add("misses_store_down")
        except Exception:
            logger.exception("A load failed; the prompt is computed")
            self._counters.add("misses_error")
        finally:
            self._counters.add("load_seconds", time.monotonic() - started)

    def _batches(self, load: Load) -> list[range]:
        """Ranges of places, so that a batch moves a bounded number of bytes."""
        block = max(1, sum(max(payloads) for payloads in self._payloads))
        size = max(1, _BATCH_BYTES // block)
        return [range(start, min(start + size, len(load.places))) for start in range(0, len(load.places), size)]

    def _run_batch(self, load: Load, batch: range) -> set[int]:
        """Indices of places that are proven on all ranks."""
        items = [item for index in batch for item in self._items(load, index)]
        first: dict[str, int] = {}
        for item in items:
            first.setdefault(item.key, item.index)
        # Of equal keys in one call, Mooncake writes one destination alone and says that it wrote them all.
        useless = {item.index for item in items if self._bad.has(item.key) or first[item.key] != item.index}
        items = [item for item in items if item.index not in useless]
        if not items:
            return set()
        sizes = [item.payload + TRAILER for item in items]
        codes = self._link.call(
            "batch_get_into",
            [item.key for item in items],
            [item.arena.slot_address(item.slot) for item in items],
            sizes,
            size=sum(sizes),
        )
        bad = {
            item.index
            for item, code, size in zip(items, codes, sizes, strict=True)
            if not self._prove(item, code, size)
        }
        good = {item.index for item in items} - bad
        self._counters.add(
            "loaded_bytes", sum(size for item, size in zip(items, sizes, strict=True) if item.index in good)
        )
        self._counters.add("loaded_blocks", len(good))
        return good

    def _items(self, load: Load, index: int) -> list[_Item]:
        group, _ = load.places[index]
        now = time.monotonic()
        return [
            _Item(
                index,
                self._names.key(load.epoch, rank, group, load.hashes[index]),
                self._arenas[number],
                load.slots[index],
                self._payloads[number][group],
                now,
            )
            for number, rank in enumerate(self._names.ranks)
        ]

    def _prove(self, item: _Item, code: int, size: int) -> bool:
        """Whether the object is what it should be. One that never can be is removed, so that a good one may come."""
        if code == size:
            fault = find_fault(item.arena.slot(item.slot), item.payload, item.key)
            if fault is None:
                return True
            self._miss(item, f"integrity_{fault.value}", is_poison=True)
            return False
        if code >= 0:
            self._miss(item, "short", is_poison=True)
            return False
        outcome = judge(code)
        is_poison = outcome is Outcome.POISON or (code == TRANSFER_FAILED and self._has_another_size(item.key, size))
        self._miss(item, "size" if is_poison else outcome.value, is_poison=is_poison)
        return False

    def _has_another_size(self, key: str, size: int) -> bool:
        """A transfer fails with the same code when its owner is gone and when the object is too small."""
        stored = self._link.call("get_size", key)
        return bool(stored >= 0 and stored != size)

    def _miss(self, item: _Item, reason: str, *, is_poison: bool) -> None:
        self._counters.add(f"misses_{reason}")
        is_new = self._bad.add(item.key)
        self._ledger.gone([item.key], item.asked)
        if is_poison and is_new:
            self._counters.add("poison_removed")
            logger.warning("Removing an object that cannot be right (%s): %s", reason, item.key)
            # Forced: our own look gave it a lease.
            self._link.call("remove", item.key, True)
