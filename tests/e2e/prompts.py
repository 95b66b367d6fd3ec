"""Prompts of known lengths, the same in every run: sentences drawn by a seeded generator, cut to a token count."""

import random

from demo.client import call

_PEOPLE = ["Marta", "Ivo", "Chen", "Amara", "Luis", "Noor", "Piet", "Sanna", "Tariq", "Yuki"]
_THINGS = ["apples", "lamps", "tickets", "bricks", "letters", "maps", "coins", "chairs", "seeds", "radios"]
_PLACES = ["the harbour", "a station", "the old mill", "the market", "a library", "the bridge", "the school"]


def text(seed: int, sentences: int) -> str:
    """Sentences with enough variety that every position matters, and a question that ends them."""
    draw = random.Random(seed)
    lines = [
        f"On day {draw.randint(1, 365)} {draw.choice(_PEOPLE)} took {draw.randint(2, 99)} {draw.choice(_THINGS)} "
        f"from {draw.choice(_PLACES)} and gave {draw.randint(1, 9)} of them to {draw.choice(_PEOPLE)}."
        for _ in range(sentences)
    ]
    return " ".join(lines)


def token_prompts(engine: str, model: str, *, count: int, seed: int) -> list[list[int]]:
    """`count` prompts as token ids, lengths spread evenly from 200 to 3000 tokens."""
    prompts = []
    for index in range(count):
        length = 200 + 2800 * index // max(count - 1, 1)
        answer = call(f"{engine}/tokenize", {"model": model, "prompt": text(seed + index, sentences=length // 16)})
        tokens = answer.json()["tokens"]
        assert len(tokens) >= length, f"the text of prompt {index} is too short: {len(tokens)} of {length} tokens"
        prompts.append(tokens[:length])
    return prompts


def whole_block_tokens(prompts: list[list[int]], block: int) -> int:
    """Prompt tokens that a store of whole blocks can give: at least one token is always computed."""
    return sum((len(prompt) - 1) // block * block for prompt in prompts)
