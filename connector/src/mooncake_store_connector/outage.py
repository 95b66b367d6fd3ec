"""What to do with a store that does not answer: leave it alone, longer each time, and ask once in between.

Pure: time is given by the caller.
"""

from dataclasses import dataclass
from typing import Final

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 10.0


@dataclass
class Outage:
    """Failures in a row, and until when nothing is asked."""

    failures: int = 0
    until: float = 0.0

    def is_open(self, now: float) -> bool:
        """Whether to leave the store alone at `now` (seconds)."""
        return now < self.until

    def failed(self, now: float) -> None:
        """An answer did not come."""
        self.failures += 1
        self.until = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.failures - 1, 10))

    def answered(self) -> None:
        """An answer came."""
        self.failures = 0
        self.until = 0.0
