"""Who waits for the store, and until when: the scheduler side's memory, bounded by the requests that live. Pure."""

from dataclasses import dataclass, field
from typing import Final

POLL_SECONDS: Final = 0.005


@dataclass
class _Wait:
    wanted: int
    deadline: float
    next_look: float


@dataclass
class Waits:
    """Requests that wait for blocks, and requests whose blocks were offered once. Times are a monotonic clock's.

    A request is offered blocks once: if it comes back, its load failed or it was preempted, and another look could
    go round for ever. It is computed then.
    """

    timeout: float
    _waiting: dict[str, _Wait] = field(default_factory=dict)
    _offered: set[str] = field(default_factory=set)

    def is_done(self, request_id: str) -> bool:
        """Whether a request had its offer."""
        return request_id in self._offered

    def begin(self, request_id: str, wanted: int, now: float) -> None:
        """Start the wait of a request; a wait that runs is not renewed."""
        self._waiting.setdefault(request_id, _Wait(wanted, now + self.timeout, now))

    def may_look(self, request_id: str, now: float) -> bool:
        """Whether it is time for another look: each one costs a question, and an idle engine asks without end."""
        wait = self._waiting.get(request_id)
        return wait is None or now >= wait.next_look

    def go_on(self, request_id: str, found: int, now: float) -> bool:
        """Whether to wait on, having found `found` tokens."""
        wait = self._waiting.get(request_id)
        if wait is None or found >= wait.wanted or now >= wait.deadline:
            return False
        wait.next_look = now + POLL_SECONDS
        return True

    def settle(self, request_id: str) -> None:
        """A request gets its offer: the wait is over."""
        self._waiting.pop(request_id, None)
        self._offered.add(request_id)

    def forget(self, request_id: str) -> None:
        """A request is gone."""
        self._waiting.pop(request_id, None)
        self._offered.discard(request_id)
