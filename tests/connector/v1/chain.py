"""What a stand-in for a model computes: every token and every word of KV follows from all tokens before it.

Pure, and without torch: tests say by it what an engine has to answer.
"""

from collections.abc import Iterable, Sequence
from typing import Final

_FACTOR: Final = 6364136223846793005
_MASK: Final = (1 << 62) - 1
_FIRST_TOKEN: Final = 100
_TOKENS: Final = 40_000
WRONG_TOKEN: Final = 7
"""The answer of a model that read other KV than it should have: no sound one gives it."""


def extend(state: int, tokens: Iterable[int]) -> list[int]:
    """The states after each token, from the state before them on; 0 before the first."""
    states = []
    for token in tokens:
        state = (state * _FACTOR + token + 1) & _MASK
        states.append(state)
    return states


def next_token(state: int) -> int:
    """The greedy token after a state."""
    return _FIRST_TOKEN + (state >> 20) % _TOKENS


def continue_prompt(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow a prompt."""
    state, found = extend(0, prompt)[-1], []
    for _ in range(count):
        found.append(next_token(state))
        state = extend(state, found[-1:])[0]
    return found
