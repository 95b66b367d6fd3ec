"""Which sequences of a batch can be sent or received, and where each lies. Pure, and without torch.

`seq_lens` counts a sequence's tokens with those already in the cache, `input_tokens` only the new ones. Offsets made
from `seq_lens` are right only when no sequence has a cached part, which is what has to be found out here.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A sequence's tokens: from `start` up to `end`, which it leaves out."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Its number of tokens."""
        return self.end - self.start


@dataclass(frozen=True)
class Batch:
    """The prefill sequences, whether decode work follows them, and why none of it can be trusted, if so."""

    prefills: tuple[Span, ...] = ()
    has_decode: bool = False
    problem: str = ""


def split_batch(
    seq_lens: Sequence[int], prefill_tokens: int, *, tokens: int, slots: int, prefills: int | None = None
) -> Batch:
    """Split a batch by the length of its sequences.

    `prefill_tokens` of the batch's `tokens` are prefill; they stand first. A sequence that starts at or past them is
    decode work. `slots` is the length of the slot mapping. `prefills` is the number of prefill sequences, where the
    engine tells it: then a cached part is found for certain. Else it is found unless the sums happen to agree.
    """
    spans = _spans(seq_lens)
    prefill = tuple(span for span in spans if span.start < prefill_tokens)
    decodes = len(spans) - len(prefill)
    problem = ""
    summed = sum(seq_lens[:prefills]) if prefills is not None else sum(span.length for span in prefill)
    if any(length < 0 for length in seq_lens):
        problem = "a sequence has a negative length"
    elif summed != prefill_tokens:
        problem = f"the prefill sequences have {summed} tokens by seq_lens, but {prefill_tokens} are in the batch"
    elif min(tokens, slots) < prefill_tokens:
        problem = f"{prefill_tokens} prefill tokens are announced, but there are {tokens} tokens and {slots} slots"
    elif prefills is None and decodes > tokens - prefill_tokens:
        problem = f"{decodes} sequences follow the prefill tokens, but {tokens - prefill_tokens} tokens do"
    return Batch(problem=problem) if problem else Batch(prefill, decodes > 0)


def _spans(seq_lens: Sequence[int]) -> list[Span]:
    spans, start = [], 0
    for length in seq_lens:
        spans.append(Span(start, start + length))
        start += length
    return spans
