"""What Mooncake's result codes mean to us. Names of its numbers: `mooncake-store/include/types.h`."""

from enum import Enum
from typing import Final

MISSING: Final = -704
WRONG_SIZE: Final = -600
TRANSFER_FAILED: Final = -800
RPC_FAILED: Final = -900


class Outcome(Enum):
    """Kinds of results, by what has to follow."""

    OK = "ok"
    MISS = "miss"
    """Nothing is there."""
    UNREACHABLE = "unreachable"
    """The master did not answer, or not in time."""
    TRANSFER = "transfer"
    """The bytes did not come or go: their owner is gone or slow, or the object has another size."""
    FULL = "full"
    """There is no room."""
    POISON = "poison"
    """The object under this key can never be right for us."""
    FAULT = "fault"
    """Anything else."""


_OUTCOMES: Final = {
    Outcome.MISS: (MISSING, -703, -707, -712),
    Outcome.UNREACHABLE: (RPC_FAILED, -901, -1010),
    Outcome.TRANSFER: (TRANSFER_FAILED, -701, -500),
    Outcome.FULL: (-10, -200, -714),
    Outcome.POISON: (WRONG_SIZE, -705, -801),
}
_BY_CODE: Final = {code: outcome for outcome, codes in _OUTCOMES.items() for code in codes}


def judge(code: int) -> Outcome:
    """The kind of a result code. Zero and more is `OK`: callers check the number of bytes themselves."""
    return Outcome.OK if code >= 0 else _BY_CODE.get(code, Outcome.FAULT)
