"""Groups of layers that share a block table, and which of their blocks a prefix needs.

Pure. A group of full attention needs every block of a prefix; a group with a sliding window needs only the last ones.
Every group's block has the hash of its last token's hash block, so groups with larger blocks need no hashes of their
own. Tokens, blocks and units are counted from the start of the prompt; a unit is what all groups' blocks divide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """`window` is how many tokens back a token looks; None for all of them."""

    block_tokens: int
    window: int | None = None

    def needed(self, tokens: int, computed: int = 0) -> range:
        """Blocks that a prefix of `tokens` needs beyond `computed` tokens, which are there already."""
        end = tokens // self.block_tokens
        start = computed // self.block_tokens
        if self.window is not None:
            # The next token looks at itself and the `window - 1` before it.
            seen = -(-(self.window - 1) // self.block_tokens)
            start = max(start, end - seen)
        return range(min(start, end), end)


@dataclass(frozen=True)
class Shape:
    """All groups, and the sizes in tokens by which prefixes (`unit`) and hashes (`hash_tokens`) are counted."""

    groups: tuple[Group, ...]
    unit: int
    hash_tokens: int

    def hash_index(self, group: int, block: int) -> int:
        """Which of a prompt's hashes names this block."""
        return (block + 1) * self.groups[group].block_tokens // self.hash_tokens - 1

    def usable(self, tokens: int) -> int:
        """The longest prefix of a prompt that can come from elsewhere: one token is always computed."""
        return max(0, (tokens - 1) // self.unit * self.unit)

    def needed(self, tokens: int, computed: int = 0) -> list[tuple[int, int]]:
        """(group, block) of all that a prefix needs, in the order in which a shorter prefix needs them."""
        pairs = [
            ((block + 1) * group.block_tokens, index, block)
            for index, group in enumerate(self.groups)
            for block in group.needed(tokens, computed)
        ]
        return [(index, block) for _, index, block in sorted(pairs)]

    def longest(self, tokens: int, computed: int, is_proven: Callable[[int, int], bool]) -> int:
        """The longest prefix of at most `tokens`, all of whose needs beyond `computed` are proven; else `computed`."""
        limit = self._chain(tokens, computed, is_proven)
        for candidate in range(limit, computed, -self.unit):
            if all(is_proven(group, block) for group, block in self._windows(candidate, computed)):
                return candidate
        return computed

    def _chain(self, tokens: int, computed: int, is_proven: Callable[[int, int], bool]) -> int:
        """How far the groups that need every block are proven without a gap, in whole units."""
        limit = tokens
        for index, group in enumerate(self.groups):
            if group.window is None:
                missing = (block for block in group.needed(tokens, computed) if not is_proven(index, block))
                limit = min(limit, next((block * group.block_tokens for block in missing), tokens))
        return max(computed, limit // self.unit * self.unit)

    def _windows(self, tokens: int, computed: int) -> list[tuple[int, int]]:
        return [
            (index, block)
            for index, group in enumerate(self.groups)
            if group.window is not None
            for block in group.needed(tokens, computed)
        ]


def ends(shape: Shape, tokens: int) -> Sequence[tuple[int, int]]:
    """(group, block) of each group's last block of a prefix."""
    return [(index, tokens // group.block_tokens - 1) for index, group in enumerate(shape.groups)]


def chain_ends(shape: Shape, tokens: int) -> Sequence[tuple[int, int]]:
    """As `ends`, of the groups that need every block; of all groups if there is none such."""
    places = ends(shape, tokens)
    return [place for place in places if shape.groups[place[0]].window is None] or places
