"""How long a prefix of a prompt the store has: which blocks to ask for next, and what the answers mean.

Pure. A prompt's blocks are stored from the front and evicted in any order, and a block that is there proves nothing of
those before it until they are loaded. So a long prefix is searched, not listed: a handful of questions find how far it
goes. What a gap hides, loading finds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mooncake_store_connector.groups import Shape, chain_ends, ends

_PROBES: Final = 8
_STEPS_BACK: Final = 16

Place = tuple[int, int]
"""A group and a block of it."""


@dataclass
class Search:
    """The search for one prompt. Ask for `wanted()`, tell `learn()`, until `wanted()` is empty; then see `found`."""

    shape: Shape
    limit: int
    """Tokens of the longest prefix that is of use, in whole units."""
    promised: int = 0
    """Tokens that someone said will be there; nothing else is asked for until they are, or `give_up` is called."""
    found: int = 0
    low: int = 0
    high: int = field(init=False)
    _is_first: bool = True
    _steps: int = 0
    _is_done: bool = False

    def __post_init__(self) -> None:
        """Units above `high` are not there; those up to `low` are."""
        self.promised = min(self.promised, self.limit)
        self.high = self.limit // self.shape.unit + 1

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for what was promised."""
        return bool(self.promised) and not self._is_done

    @property
    def is_done(self) -> bool:
        """Whether `found` is final."""
        return self._is_done or self.limit <= 0

    def give_up(self) -> None:
        """What was promised did not come in time: search for what is there."""
        self.promised = 0

    def wanted(self) -> list[Place]:
        """What to ask for next; nothing once it is done."""
        if self.is_done:
            return []
        if self.promised:
            return list(ends(self.shape, self.promised))
        if self.high - self.low > 1:
            return [place for unit in self._units() for place in chain_ends(self.shape, unit * self.shape.unit)]
        return self._windows()

    def learn(self, answers: Mapping[Place, bool]) -> None:
        """Take the answers to all that was wanted."""
        if self.promised:
            if all(answers[place] for place in ends(self.shape, self.promised)):
                self._finish(self.promised)
        elif self.high - self.low > 1:
            self._narrow(answers)
            if self.high - self.low <= 1 and not self._windows():
                self._finish(self.low * self.shape.unit)
        elif all(answers[place] for place in self._windows()):
            self._finish(self.low * self.shape.unit)
        else:
            self._step_back()

    def _units(self) -> Sequence[int]:
        """Units between `low` and `high` to ask for: all the way by doubling at first, then evenly."""
        low, high = self.low, self.high
        if self._is_first:
            doubling = [1 << power for power in range(high.bit_length()) if 1 << power < high]
            return sorted({*doubling, high - 1})
        step = max(1, (high - low) // (_PROBES + 1))
        return list(range(low + step, high, step))[: _PROBES + 1] or [low + 1]

    def _narrow(self, answers: Mapping[Place, bool]) -> None:
        for unit in self._units():
            if all(answers[place] for place in chain_ends(self.shape, unit * self.shape.unit)):
                self.low = unit
            else:
                self.high = unit
                break
        self._is_first = False

    def _windows(self) -> list[Place]:
        """Blocks inside windows that have not been asked for."""
        if self.low <= 0:
            return []
        tokens = self.low * self.shape.unit
        return [
            (index, block)
            for index, group in enumerate(self.shape.groups)
            if group.window is not None
            for block in group.needed(tokens)
        ]

    def _step_back(self) -> None:
        self._steps += 1
        self.low -= 1
        self.high = self.low + 1
        if self.low <= 0 or self._steps > _STEPS_BACK:
            self._finish(0)

    def _finish(self, tokens: int) -> None:
        self.found = tokens
        self._is_done = True
