"""How long a request may wait for KV: never longer than half of what computing it would take, nor than a limit.

Only time in which nothing else holds a request up counts as its wait. Pure: time is given by the caller.
"""

from dataclasses import dataclass
from typing import Final

_WEIGHT: Final = 0.2
_SMALLEST_STEP: Final = 32
_LONGEST_STEP_SECONDS: Final = 60.0


@dataclass
class Pace:
    """How many prompt tokens a second this engine computes, as seen from its steps."""

    tokens_per_second: float = 0.0
    _since: float = 0.0
    _tokens: int = 0

    def step(self, tokens: int, now: float) -> None:
        """A step with `tokens` tokens begins now; the one before it has ended."""
        seconds = now - self._since
        if self._tokens >= _SMALLEST_STEP and 0.0 < seconds < _LONGEST_STEP_SECONDS:
            seen = self._tokens / seconds
            known = self.tokens_per_second
            self.tokens_per_second = seen if not known else (1 - _WEIGHT) * known + _WEIGHT * seen
        self._since, self._tokens = now, tokens

    def budget(self, tokens: int, limit: float) -> float:
        """Seconds that a prompt of so many tokens may wait."""
        if not self.tokens_per_second:
            return limit
        return min(limit, 0.5 * tokens / self.tokens_per_second)


@dataclass
class Wait:
    """One request's wait for KV, from the first time that the engine would take it. Never renewed."""

    allowed: float
    """Seconds in all."""
    now: float
    step: int
    _spent: float = 0.0

    def is_over(self, now: float, step: int) -> bool:
        """Whether the request has waited long enough, when the engine would take it in step number `step`.

        A step that did not ask for it had no place for it: it would have waited through that one without KV as well.
        """
        if step - self.step <= 1:
            self._spent += now - self.now
        self.now, self.step = now, step
        return self._spent >= self.allowed
