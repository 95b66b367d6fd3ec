"""Which blocks the store has on all ranks, as far as this engine stored them, and what of it was not told yet.

For those who route requests by what an engine has stored. Kept only where that is wanted. Bounded: what is forgotten is
not told, or not told to be gone, and is counted.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.agent.objects import part_of
from mooncake_store_connector.counters import Counters

_BLOCKS: Final = 1 << 18
_NEWS: Final = 1 << 16

_Block = tuple[int, bytes]


class Ledger:
    """Written by the threads that save, look up and load, read by the main loop."""

    def __init__(self, counters: Counters, blocks: int = _BLOCKS, news: int = _NEWS) -> None:
        """At most `blocks` are known at a time, and at most `news` wait to be told."""
        self.is_wanted = False
        self.ranks = 1
        self._counters = counters
        self._most_blocks = blocks
        self._most_news = news
        self._kept: OrderedDict[_Block, float] = OrderedDict()
        self._partial: OrderedDict[_Block, set[str]] = OrderedDict()
        self._news: deque[tuple[bool, _Block]] = deque()
        self._is_all_gone = False
        self._ended_epoch = -1
        self._life = 0
        self._lock = threading.Lock()

    def kept(self, keys: Iterable[str], now: float, life: int) -> None:
        """The store took these objects, for the client of this `life`. A block counts once all its ranks have come."""
        parts = [part_of(key) for key in keys]
        with self._lock:
            for part in parts:
                is_current = life == self._life and part.epoch > self._ended_epoch
                if is_current and self._is_whole(block := (part.group, part.block_hash), part.rank):
                    self._kept.pop(block, None)
                    self._kept[block] = now
                    self._tell(True, block)
            while len(self._kept) > self._most_blocks:
                self._kept.popitem(last=False)

    def gone(self, keys: Iterable[str], asked: float) -> None:
        """These objects were not there, or of no use. Says nothing of what was stored after they were `asked` for."""
        if not self.is_wanted:
            return
        blocks = {(part.group, part.block_hash) for part in map(part_of, keys)}
        with self._lock:
            for block in blocks:
                if self._kept.get(block, asked) < asked:
                    del self._kept[block]
                    self._tell(False, block)

    def begin_life(self, life: int) -> None:
        """Another client has joined the store: the memory that the one before had lent is gone with what lay there."""
        with self._lock:
            self._life = life
            self._forget()

    def end_epoch(self, epoch: int) -> None:
        """Nothing of this epoch, or of one before it, may be used any more."""
        with self._lock:
            self._ended_epoch = epoch
            self._forget()

    def take(self) -> m.News | None:
        """What is to be told next, in the order in which it came."""
        if not self._news and not self._is_all_gone:
            return None
        with self._lock:
            if self._is_all_gone:
                self._is_all_gone = False
                return m.AllGone()
            is_kept, _ = self._news[0]
            blocks: list[_Block] = []
            while self._news and self._news[0][0] is is_kept and len(blocks) < m.NEWS:
                blocks.append(self._news.popleft()[1])
        kind = m.Kept if is_kept else m.Gone
        return kind([group for group, _ in blocks], [block_hash for _, block_hash in blocks])

    def _is_whole(self, block: _Block, rank: str) -> bool:
        """Whether all ranks have stored it, now that this one has."""
        ranks = self._partial.pop(block, set()) | {rank}
        if len(ranks) == self.ranks:
            return True
        self._partial[block] = ranks
        if len(self._partial) > self._most_blocks:
            self._partial.popitem(last=False)
        return False

    def _tell(self, is_kept: bool, block: _Block) -> None:
        if len(self._news) < self._most_news:
            self._news.append((is_kept, block))
        else:
            self._counters.add("events_dropped")

    def _forget(self) -> None:
        self._is_all_gone = self._is_all_gone or bool(self._kept)
        self._kept.clear()
        self._partial.clear()
        self._news.clear()
