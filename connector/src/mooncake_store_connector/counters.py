"""Counters that threads add to and that someone reads now and then."""

import threading
from collections import Counter
from collections.abc import Mapping


class Counters:
    """Sums by name. Safe to use from several threads; a sum never falls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()

    def add(self, name: str, amount: float = 1) -> None:
        """Add `amount`, not negative, to a sum."""
        with self._lock:
            self._sums[name] += amount  # type: ignore[assignment]  # floats sum up as well

    def snapshot(self) -> Mapping[str, float]:
        """All sums as they are now."""
        with self._lock:
            return dict(self._sums)
