"""Counters that threads add to and that someone reads now and then."""

import threading
from collections import Counter
from collections.abc import Mapping


class Counters:
    """Sums by name. Safe to use from several threads; a sum never falls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()
        self._taken: Mapping[str, float] = {}

    def add(self, name: str, amount: float = 1) -> None:
        """Add `amount`, not negative, to a sum."""
        with self._lock:
            self._sums[name] += amount  # type: ignore[assignment]  # floats sum up as well

    def snapshot(self) -> Mapping[str, float]:
        """All sums as they are now."""
        with self._lock:
            return dict(self._sums)

    def take(self) -> dict[str, float]:
        """By how much sums have grown since the last call; those that have not are left out."""
        with self._lock:
            sums = dict(self._sums)
            taken, self._taken = self._taken, sums
        return {name: amount for name, total in sums.items() if (amount := total - taken.get(name, 0.0)) > 0}
