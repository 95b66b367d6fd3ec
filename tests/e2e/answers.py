"""Greedy answers with their logprobs, and where two answers to the same prompts part."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from demo.client import complete
from e2e.stack import MODEL

MAX_TOKENS = 32
CANDIDATES = 5


@dataclass(frozen=True)
class Generation:
    """Tokens of one answer, with the logprobs of the best candidates at each step, by token."""

    tokens: list[int]
    candidates: list[dict[int, float]]


@dataclass(frozen=True)
class Difference:
    """The first token at which an answer leaves the plain server's."""

    prompt: int
    index: int
    expected: int
    found: int
    gap: float
    """By how much the plain server preferred its own token there, in logprobs; infinite if the other was not near."""


def generate(url: str, prompts: Sequence[Sequence[int]], concurrency: int, *, asked: int = 1) -> list[Generation]:
    """Answers to all prompts, `concurrency` at a time, in order: the last one of `asked` in a row for each prompt."""

    def one(prompt: Sequence[int]) -> Generation:
        for _ in range(asked - 1):
            complete(url, MODEL, prompt, max_tokens=1)
        answer = complete(
            url,
            MODEL,
            prompt,
            MAX_TOKENS,
            ignore_eos=True,
            return_token_ids=True,
            logprobs=CANDIDATES,
            return_tokens_as_token_ids=True,
        )
        choice = answer["choices"][0]
        steps = choice["logprobs"]["top_logprobs"]
        named = [{int(name.removeprefix("token_id:")): value for name, value in step.items()} for step in steps]
        return Generation(choice["token_ids"], named)

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, prompts))


def first_difference(plain: Generation, split: Generation) -> int | None:
    """Index of the first token that differs, or None."""
    pairs = enumerate(zip(plain.tokens, split.tokens, strict=True))
    return next((index for index, (left, right) in pairs if left != right), None)


def differences(plain: list[Generation], split: list[Generation]) -> list[Difference]:
    """Where answers differ, the first token of each prompt that does."""
    found = []
    for number, (left, right) in enumerate(zip(plain, split, strict=True)):
        index = first_difference(left, right)
        if index is not None:
            expected, other = left.tokens[index], right.tokens[index]
            weighed = left.candidates[index]
            gap = weighed[expected] - weighed.get(other, -math.inf)
            found.append(Difference(number, index, expected, other, gap))
    return found


def summary_of(found: Iterable[Difference]) -> dict[str, float]:
    """How many answers differ, how many of them at exact ties, and how far the plain server was from a tie at most."""
    gaps = [round(one.gap, 4) for one in found]
    return {"answers": len(gaps), "at_ties": gaps.count(0), "largest_gap": max(gaps, default=0)}
