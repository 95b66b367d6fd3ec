"""The pair guard: what two values say about each other, so that torn, damaged or foreign pairs are found.

Opt-in (`pair_guard`). It stands in the header's metadata, which readers without it pass over, vLLM 0.9 among them:
`pair`, a random name of the pair; `checksum`, XXH3-64 of the tensors' bytes, in hexadecimal; `model`, a digest of the
model's name, what decides the bytes of its KV, and the stage's layers. A reader with the guard takes a pair that has
all of it. A value whose checksum does not fit, and both values of a pair whose names differ, are removed from the
store, so that the next send replaces them. Those of another model or without a guard are left there, with one warning.

Pure, and without torch.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_PAIR: Final = "pair"
_CHECKSUM: Final = "checksum"
_MODEL: Final = "model"


class Verdict(Enum):
    """What to think of a value or a pair."""

    GOOD = "good"
    UNGUARDED = "has no guard"
    FOREIGN = "is another model's"
    DAMAGED = "is damaged"
    TORN = "is not of the same pair"


@dataclass(frozen=True)
class PairGuard:
    """The mark of one pair. `model` names the model; 128 random bits name the pair."""

    model: str
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def metadata(self, checksum: int) -> dict[str, str]:
        """What stands in a value's header. Its length is the same for every checksum."""
        return {_PAIR: self.nonce, _CHECKSUM: f"{checksum:016x}", _MODEL: self.model}


def judge_value(metadata: Mapping[str, str], model: str, checksum: int) -> Verdict:
    """What a value's metadata say of it; `checksum` is that of its tensors' bytes."""
    if not {_PAIR, _CHECKSUM, _MODEL} <= metadata.keys():
        return Verdict.UNGUARDED
    if metadata[_CHECKSUM] != f"{checksum:016x}":
        return Verdict.DAMAGED
    return Verdict.GOOD if metadata[_MODEL] == model else Verdict.FOREIGN


def judge_pair(first: Mapping[str, str], second: Mapping[str, str]) -> Verdict:
    """Whether two guarded values were written together."""
    return Verdict.GOOD if first[_PAIR] == second[_PAIR] else Verdict.TORN
