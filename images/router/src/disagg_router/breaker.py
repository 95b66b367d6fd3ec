"""When an engine is left alone: a circuit breaker as a plain state machine. The caller brings the clock.

CLOSED: requests pass. OPEN: none pass; a background check is due from time to time. What a check found (the engine does
not answer) a passed check cures: the breaker closes. What requests found (it answers checks, yet fails them) only a
request can disprove: a passed check leads to HALF_OPEN, where one request may try. Its success closes the breaker, its
failure opens it again for twice as long.
"""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What the breaker lets through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class Permit:
    """One request's leave to go. Its outcome counts only in the era in which it was given.

    `answers` is how many requests the engine had answered in that era by then.
    """

    era: int
    answers: int = 0


class Breaker:
    """A breaker of one engine. Times are seconds of any monotonic clock."""

    def __init__(self, *, threshold: int = 3, cooldown: float = 1.0, max_cooldown: float = 60.0) -> None:
        self._threshold = threshold
        self._first_cooldown = cooldown
        self._max_cooldown = max_cooldown
        self._cooldown = cooldown
        self._failures = 0
        self._answers = 0
        self._check_at = 0.0
        self._era = 0
        self._needs_trial = False
        self._trial: Permit | None = None
        self._state = State.CLOSED

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    def allows(self) -> bool:
        """Whether a request may go now."""
        return self._state is State.CLOSED or (self._state is State.HALF_OPEN and self._trial is None)

    def permit(self) -> Permit:
        """Leave for one request. Call only when `allows()`, or where the engine is used in spite of the breaker."""
        permit = Permit(self._era, self._answers)
        if self._state is State.HALF_OPEN and self._trial is None:
            self._trial = permit
        return permit

    def succeed(self, permit: Permit) -> bool:
        """The request was answered. True when this closed the breaker."""
        if permit.era != self._era:
            return False
        self._failures = 0  # in a row is what counts
        self._answers += 1
        if self._state is State.HALF_OPEN and permit is self._trial:
            self._move(State.CLOSED)
            self._cooldown = self._first_cooldown
            return True
        return False

    def fail(self, permit: Permit, now: float, *, at_once: bool = False) -> bool:
        """The request failed at an engine that can be reached. True when this opened the breaker.

        `at_once`: it came too late, and one such failure is enough, since each costs its whole time limit. But when
        others were answered meanwhile it stood in a queue, which says nothing against the engine.
        """
        if permit.era != self._era or (at_once and self._answers > permit.answers):
            return False
        trial = self._state is State.HALF_OPEN
        if trial and permit is not self._trial:
            return False
        self._failures += 1
        if not (trial or at_once or self._failures >= self._threshold):
            return False
        if trial:
            self._cooldown = min(self._cooldown * 2, self._max_cooldown)
        self._open(now, needs_trial=True)
        return True

    def lose(self, now: float) -> bool:
        """The engine cannot be reached, or does not answer its health check. True when this opened the breaker."""
        if self._state is State.OPEN:
            return False
        self._open(now, needs_trial=False)
        return True

    def release(self, permit: Permit) -> None:
        """The request ended without a verdict on the engine (the client left)."""
        if permit is self._trial:
            self._trial = None

    def is_check_due(self, now: float) -> bool:
        """Whether a background check's verdict would count now."""
        return self._state is State.OPEN and now >= self._check_at

    def check_passed(self, now: float) -> bool:
        """A due check passed: the breaker closes, or one request may try. True when the state changed."""
        if not self.is_check_due(now):
            return False
        self._move(State.HALF_OPEN if self._needs_trial else State.CLOSED)
        return True

    def _open(self, now: float, *, needs_trial: bool) -> None:
        self._move(State.OPEN)
        self._needs_trial = needs_trial
        self._check_at = now + self._cooldown

    def _move(self, state: State) -> None:
        self._state = state
        self._era += 1
        self._failures = 0
        self._answers = 0
        self._trial = None
