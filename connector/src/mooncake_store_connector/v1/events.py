"""What others are told of the blocks that this engine has in the store: which came, and which went. Pure.

They route requests by it. The agent says which blocks the store has taken on all ranks, by group and hash alone; what
else there is to say of a block is noted when it is handed over, and kept until then. Everything is bounded: a block
that is forgotten is not told, one that was told and is forgotten is taken back, and what does not fit is
dropped and counted.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.groups import Shape

Block = tuple[int, bytes]
"""A group and a hash."""

_AT_ONCE: Final = 1024
# Longer than a block waits in the agent's queue, and than a put may take.
_SECONDS: Final = 30.0
# So long an engine without requests takes empty steps for news of the last blocks that it has handed over.
_REST_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Fact:
    """What there is to say of one block. `labels` are what its request has in common for all of its blocks."""

    parent: bytes | None
    tokens: Sequence[int]
    extra_keys: tuple[Any, ...] | None
    labels: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """Blocks of one group, each the parent of the next."""

    group: int
    parent: bytes | None
    labels: Mapping[str, Any]
    block_tokens: int
    hashes: list[bytes]
    tokens: list[int]
    extra_keys: list[tuple[Any, ...] | None]


class Words(Protocol):
    """How the engine puts it."""

    def fact(self, request: Any, start: int, end: int, parent: bytes | None) -> Fact:
        """What there is to say of the block of a request's tokens from `start` to `end`."""

    def stored(self, run: Run) -> Any:
        """The event for blocks that came."""

    def removed(self, group: int, hashes: Sequence[bytes]) -> Any:
        """The event for blocks that went."""


@dataclass(frozen=True)
class Bounds:
    """How much is kept: blocks that were told, blocks that are on their way, and blocks that wait to be told."""

    told: int = 1 << 18
    noted: int = 1 << 16
    waiting: int = 1 << 16


class Events:
    """Used by the scheduler's thread alone. Times are a monotonic clock's seconds."""

    def __init__(self, words: Words, shape: Shape, counters: Counters, bounds: Bounds = Bounds()) -> None:
        self._words = words
        self._shape = shape
        self._counters = counters
        self._bounds = bounds
        self._noted: OrderedDict[Block, tuple[Fact, float]] = OrderedDict()
        self._told: OrderedDict[Block, None] = OrderedDict()
        self._news: deque[m.News] = deque()
        self._waiting = 0
        self._rests_since: float | None = None

    def note(self, request: Any, places: Iterable[tuple[int, int]], now: float) -> None:
        """These blocks of a request (group, index) are being handed over."""
        self._rests_since = None
        for group, index in places:
            size, hashes = self._shape.groups[group].block_tokens, request.block_hashes
            parent = hashes[self._shape.hash_index(group, index - 1)] if index else None
            block = group, bytes(hashes[self._shape.hash_index(group, index)])
            self._noted.pop(block, None)
            self._noted[block] = self._words.fact(request, index * size, (index + 1) * size, parent), now
        self._forget_notes(now)

    def hear(self, news: m.News) -> None:
        """The agent has said something."""
        if isinstance(news, m.AllGone):
            self._take_back()
        elif self._waiting + len(news.hashes) > self._bounds.waiting:
            self._counters.add("events_dropped", len(news.hashes))
        else:
            self._waiting += len(news.hashes)
            self._news.append(news)

    def forget(self) -> None:
        """Nothing that was handed over so far is vouched for any more."""
        self._noted.clear()
        self._take_back()

    def _take_back(self) -> None:
        self._news.clear()
        self._waiting = 0
        if self._told:
            self._news.append(m.AllGone())

    def is_expecting(self, now: float) -> bool:
        """Whether there is something to tell, or soon will be. Asked when there is nothing else to do.

        The time counts from then on: blocks are noted before the step that fills them, which may take long.
        """
        if self._news:
            return True
        if not self._noted:
            return False
        self._rests_since = now if self._rests_since is None else self._rests_since
        return now - self._rests_since < _REST_SECONDS

    def take(self) -> list[Any]:
        """What has come since the last call, as far as it is not too much for one step."""
        events: list[Any] = []
        room = _AT_ONCE
        while self._news and room > 0:
            news = self._news.popleft()
            if isinstance(news, m.AllGone):
                blocks = [self._told.popitem(last=False)[0] for _ in range(min(room, len(self._told)))]
                if self._told:
                    self._news.appendleft(news)
                events += self._removed(blocks)
            else:
                blocks = list(zip(news.groups, news.hashes, strict=True))
                self._waiting -= len(blocks)
                events += self._stored(blocks) if isinstance(news, m.Kept) else self._gone(blocks)
            room -= len(blocks)
        return events

    def _stored(self, blocks: Iterable[Block]) -> list[Any]:
        fresh: list[tuple[Block, Fact]] = []
        for block in blocks:
            fact, _ = self._noted.pop(block, (None, 0.0))
            if block in self._told:
                self._told.move_to_end(block)
            elif fact is None:
                self._counters.add("events_dropped")
            else:
                self._told[block] = None
                fresh.append((block, fact))
        over = range(len(self._told) - self._bounds.told)
        forgotten = [self._told.popitem(last=False)[0] for _ in over]
        return [self._words.stored(run) for run in runs(fresh)] + self._removed(forgotten)

    def _gone(self, blocks: Iterable[Block]) -> list[Any]:
        known = [block for block in dict.fromkeys(blocks) if block in self._told]
        for block in known:
            del self._told[block]
        return self._removed(known)

    def _removed(self, blocks: Iterable[Block]) -> list[Any]:
        by_group: dict[int, list[bytes]] = {}
        for group, block_hash in blocks:
            by_group.setdefault(group, []).append(block_hash)
        return [self._words.removed(group, hashes) for group, hashes in by_group.items()]

    def _forget_notes(self, now: float) -> None:
        """Blocks that the store has not taken by now never came there, or are too many."""
        while self._noted:
            oldest = next(iter(self._noted))
            if len(self._noted) <= self._bounds.noted and now - self._noted[oldest][1] <= _SECONDS:
                return
            del self._noted[oldest]


def runs(blocks: Iterable[tuple[Block, Fact]]) -> list[Run]:
    """Blocks in their order, those that follow upon each other together."""
    found: list[Run] = []
    for (group, block_hash), fact in blocks:
        last = found[-1] if found else None
        follows = last is not None and last.group == group and last.hashes[-1] == fact.parent
        if last is None or not follows or last.labels != fact.labels:
            last = Run(group, fact.parent, fact.labels, len(fact.tokens), [], [], [])
            found.append(last)
        last.hashes.append(block_hash)
        last.tokens.extend(fact.tokens)
        last.extra_keys.append(fact.extra_keys)
    return found
