"""Looking prompts up: one thread, one question to the master for all prompts that wait for an answer."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mooncake_store_connector.agent.ledger import Ledger
from mooncake_store_connector.agent.link import StoreDownError, StoreLink
from mooncake_store_connector.agent.objects import BadKeys, Names
from mooncake_store_connector.agent.search import Place, Search
from mooncake_store_connector.agent.threads import give_way
from mooncake_store_connector.counters import Counters

logger = logging.getLogger("mooncake_store_connector")

_PROMISE_PAUSE: Final = 0.003
_LATER_PAUSE: Final = 0.01
_EAGER_SECONDS: Final = 0.05


@dataclass
class Lookup:
    """A prompt to look up. `promise_until` ends the wait for what was promised (a monotonic clock's seconds)."""

    request: str
    search: Search
    hashes: list[bytes]
    epoch: int
    started: float
    promise_until: float
    next_look: float = 0.0
    is_dropped: bool = False


class Lookups:
    """The thread. `found(lookup)` is called for each that ended; a dropped one may or may not be told."""

    def __init__(
        self,
        link: StoreLink,
        names: Names,
        bad: BadKeys,
        ledger: Ledger,
        counters: Counters,
        found: Callable[[Lookup], None],
    ) -> None:
        self._link = link
        self._names = names
        self._bad = bad
        self._ledger = ledger
        self._counters = counters
        self._found = found
        self._pending: list[Lookup] = []
        self._ready = threading.Condition()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="store-lookup", daemon=True).start()

    def add(self, lookup: Lookup) -> None:
        """Look a prompt up."""
        with self._ready:
            self._pending.append(lookup)
            self._ready.notify()

    def _run(self) -> None:
        give_way()
        while True:
            due = self._wait_for_due()
            try:
                self._ask(due)
            except StoreDownError:
                self._fail(due)
            except Exception:
                logger.exception("A lookup failed; its prompts count as not stored")
                self._counters.add("misses_error", len(due))
                self._fail(due)
            self._settle(due)

    def _wait_for_due(self) -> list[Lookup]:
        with self._ready:
            while True:
                self._pending = [lookup for lookup in self._pending if not lookup.is_dropped]
                now = time.monotonic()
                due = [lookup for lookup in self._pending if lookup.next_look <= now]
                if due:
                    return due
                nearest = min((lookup.next_look for lookup in self._pending), default=None)
                self._ready.wait(None if nearest is None else max(0.0, nearest - now))

    def _ask(self, due: list[Lookup]) -> None:
        now = time.monotonic()
        for lookup in due:
            if lookup.search.is_waiting and now >= lookup.promise_until:
                self._counters.add("promises_broken")
                lookup.search.give_up()
        questions = [(lookup, self._keys(lookup)) for lookup in due]
        distinct = list(dict.fromkeys(key for _, keys in questions for several in keys.values() for key in several))
        there: set[str] = set()
        if distinct:
            codes = self._link.call("batch_is_exist", distinct)
            there = {key for key, code in zip(distinct, codes, strict=True) if code == 1 and not self._bad.has(key)}
            if self._ledger.is_wanted:
                self._ledger.gone([key for key, code in zip(distinct, codes, strict=True) if code == 0], now)
        for lookup, keys in questions:
            if keys:
                lookup.search.learn({place: there.issuperset(several) for place, several in keys.items()})

    def _keys(self, lookup: Lookup) -> dict[Place, list[str]]:
        """What a search wants to know next, as keys of every rank."""
        search = lookup.search
        return {
            (group, block): [
                self._names.key(lookup.epoch, rank, group, lookup.hashes[search.shape.hash_index(group, block)])
                for rank in self._names.ranks
            ]
            for group, block in search.wanted()
        }

    def _fail(self, due: list[Lookup]) -> None:
        for lookup in due:
            lookup.search.limit = 0

    def _settle(self, due: list[Lookup]) -> None:
        """Tell what ended; what waits for a promise is asked again after a while."""
        now = time.monotonic()
        ended = [lookup for lookup in due if lookup.search.is_done]
        for lookup in due:
            if lookup.search.is_waiting:
                eager = now - lookup.started < _EAGER_SECONDS
                lookup.next_look = now + (_PROMISE_PAUSE if eager else _LATER_PAUSE)
        with self._ready:
            self._pending = [lookup for lookup in self._pending if not lookup.search.is_done]
        for lookup in ended:
            self._counters.add("lookup_seconds", now - lookup.started)
            self._found(lookup)
