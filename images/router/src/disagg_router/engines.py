"""The engines that this router knows, and which of them takes the next request.

One event loop owns a pool; nothing here waits. The choice is by least requests in flight from this router.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from disagg_router.breaker import Breaker, State


class Role(StrEnum):
    """What an engine is for."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Member:
    """An engine as discovery lists it."""

    url: str
    role: Role


@dataclass(eq=False)
class Engine:
    """An engine and what this router has seen of it."""

    url: str
    role: Role
    breaker: Breaker
    revision: str = ""
    """KV revision; empty while it is not known."""
    in_flight: int = 0
    misses: int = 0
    checked_at: float = float("-inf")
    checking: bool = False
    scopes: set[asyncio.Timeout] = field(default_factory=set)
    hung: bool = False

    @contextmanager
    def watched(self, scope: asyncio.Timeout) -> Iterator[None]:
        """While the block runs, a hang of this engine ends `scope` with TimeoutError."""
        self.scopes.add(scope)
        try:
            yield
        finally:
            self.scopes.discard(scope)

    def end_scopes(self, now: float) -> None:
        """Ends every wait on this engine."""
        for scope in tuple(self.scopes):
            if not scope.expired():
                scope.reschedule(now)


class Pool:
    """Engines by role. `changed` is notified when a member comes."""

    def __init__(self, new_breaker: Callable[[], Breaker], *, last_resort: str = "") -> None:
        self._new_breaker = new_breaker
        self._members: dict[tuple[Role, str], Engine] = {}
        self._leaving: set[Engine] = set()
        self._last_resort = Engine(last_resort, Role.DECODE, new_breaker()) if last_resort else None
        self.changed = asyncio.Event()

    @property
    def last_resort(self) -> Engine | None:
        """Decode's Service: used when no listed decode engine is left."""
        return self._last_resort

    def is_rest(self, engine: Engine) -> bool:
        """Whether this is decode's Service, and no decode engine is listed that could be behind it."""
        return engine is self._last_resort and not self.listed(Role.DECODE)

    def listed(self, role: Role) -> list[Engine]:
        """The engines of a role that discovery lists now."""
        return [engine for engine in self._members.values() if engine.role is role]

    def watched(self) -> list[Engine]:
        """Engines whose health matters: listed ones, and those gone from the list that still hold requests."""
        self._leaving = {engine for engine in self._leaving if engine.in_flight}
        return [*self._members.values(), *self._leaving]

    def update(self, members: Iterable[Member]) -> tuple[list[Engine], list[Engine]]:
        """Takes discovery's list. Returns the engines that came and those that went."""
        wanted = {(member.role, member.url): member for member in members}
        gone = [self._members.pop(key) for key in self._members.keys() - wanted.keys()]
        self._leaving.update(gone)
        came = []
        for key, member in wanted.items():
            if key not in self._members:
                engine = self._members[key] = Engine(member.url, member.role, self._new_breaker())
                came.append(engine)
        if came:
            self.changed.set()
        return came, gone

    def unpaired(self) -> list[Engine]:
        """Listed engines whose KV revision is not known."""
        return [engine for engine in self._members.values() if not engine.revision]

    def next_revision(self) -> str:
        """The KV revision of the decode engine whose turn it is; empty when it is not known, or there is none."""
        engine = self.choose_decode(())
        return engine.revision if engine is not None else ""

    def choose_prefill(self, tried: Iterable[str], revision: str = "") -> Engine | None:
        """A prefill engine of this KV revision that is worth asking, or None: decode can do without."""
        left = [e for e in self.listed(Role.PREFILL) if e.url not in tried and _shares(e, revision)]
        return _least_loaded([engine for engine in left if engine.breaker.allows()])

    def choose_decode(self, tried: Iterable[str], revision: str = "") -> Engine | None:
        """The decode engine most likely to answer, best one that shares the KV of this revision.

        A sound one without that KV is better than one in doubt, that is better than none, and the Service comes last.
        """
        left = [engine for engine in self.listed(Role.DECODE) if engine.url not in tried]
        sound = [engine for engine in left if engine.breaker.allows()]
        sharing = [engine for engine in sound if _shares(engine, revision)]
        chosen = _least_loaded(sharing) or _least_loaded(sound) or _least_loaded(left)
        if chosen is None and self._last_resort is not None and self._last_resort.url not in tried:
            return self._last_resort
        return chosen

    def count(self, role: Role, state: State) -> int:
        """How many listed engines of a role have their breaker in this state."""
        return sum(engine.breaker.state is state for engine in self.listed(role))


def _shares(engine: Engine, revision: str) -> bool:
    """Whether an engine can use KV of this revision, as far as both are known."""
    return not revision or not engine.revision or engine.revision == revision


def _least_loaded(engines: list[Engine]) -> Engine | None:
    if not engines:
        return None
    least = min(engine.in_flight for engine in engines)
    return random.choice([engine for engine in engines if engine.in_flight == least])  # noqa: S311  # no secret in a tie
