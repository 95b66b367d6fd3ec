"""Who waits for the store, and until when: the scheduler side's memory, bounded by the requests that live. Pure."""

from dataclasses import dataclass, field
from typing import Final

POLL_SECONDS: Final = 0.005
# So many promises in a row that were not kept mean that prefill's saves fail. Waiting on would only delay answers.
LIMIT_OF_MISSES: Final = 3
PAUSE_SECONDS: Final = 5.0


@dataclass
class _Wait:
    wanted: int
    deadline: float
    next_look: float
    is_counted: bool = False


@dataclass
class Waits:
    """Requests that wait for blocks, and requests whose blocks were offered once. Times are a monotonic clock's.

    A request is offered blocks once: if it comes back, its load failed or it was preempted, and another look could
    go round for ever. It is computed then.
    """

    timeout: float
    misses: int = 0
    """Promises in a row that were not kept in time."""
    paused_until: float = 0.0
    _waiting: dict[str, _Wait] = field(default_factory=dict)
    _offered: set[str] = field(default_factory=set)

    def is_done(self, request_id: str) -> bool:
        """Whether a request had its offer."""
        return request_id in self._offered

    def begin(self, request_id: str, wanted: int, now: float) -> None:
        """Start the wait of a request; a wait that runs is not renewed. During a pause the first look is the last."""
        patience = 0.0 if now < self.paused_until else self.timeout
        self._waiting.setdefault(request_id, _Wait(wanted, now + patience, now))

    def may_look(self, request_id: str, now: float) -> bool:
        """Whether it is time for another look: each one costs a question, and an idle engine asks without end."""
        wait = self._waiting.get(request_id)
        return wait is None or now >= wait.next_look

    def go_on(self, request_id: str, found: int, now: float) -> bool:
        """Whether to wait on, having found `found` tokens."""
        wait = self._waiting.get(request_id)
        if wait is None or self._judge(wait, found, now):
            return False
        wait.next_look = now + POLL_SECONDS
        return True

    def _judge(self, wait: _Wait, found: int, now: float) -> bool:
        """Whether a wait is over; counts, once for each wait, whether the promise was kept."""
        if found >= wait.wanted:
            self.misses = 0
            return True
        if now < wait.deadline:
            return False
        if not wait.is_counted and now >= self.paused_until:
            self.misses += 1
            if self.misses >= LIMIT_OF_MISSES:
                self.paused_until = now + PAUSE_SECONDS
        wait.is_counted = True
        return True

    def settle(self, request_id: str) -> None:
        """A request gets its offer: the wait is over."""
        self._waiting.pop(request_id, None)
        self._offered.add(request_id)

    def forget(self, request_id: str) -> None:
        """A request is gone."""
        self._waiting.pop(request_id, None)
        self._offered.discard(request_id)
