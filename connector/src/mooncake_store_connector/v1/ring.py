"""Slots that one side fills in order and the other frees in the same order. Pure."""


class Ring:
    """`count` slots, numbered from 0."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._head = 0
        self.used = 0

    @property
    def free(self) -> int:
        """Slots that can be taken."""
        return self._count - self.used

    def take(self, wanted: int) -> tuple[int, int]:
        """The first slot and the number of slots taken: consecutive, at most `wanted`, fewer at the ring's end."""
        first = self._head
        taken = min(wanted, self.free, self._count - first)
        self._head = (first + taken) % self._count if self._count else 0
        self.used += taken
        return first, taken

    def release(self, count: int) -> None:
        """The oldest `count` slots are free again."""
        self.used = max(0, self.used - count)
