"""Kubernetes quantities, as in `resources`. Sizes of the store have their own spellings, which the connector reads."""

import re
from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_PATTERN: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d{1,3}|[numkMGTPE]|[KMGTPE]i)?")
MI: Final = 1 << 20
GI: Final = 1 << 30


def parse_quantity(value: int | float | str) -> Decimal:
    """The number that a quantity stands for. Raises ValueError for what the API server would refuse too."""
    match = _PATTERN.fullmatch(str(value))
    if match is None or isinstance(value, bool):
        raise ValueError(f"{value!r} is no quantity; write a number with an optional suffix, such as 500m, 4 or 16Gi")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number * Decimal(10) ** int(suffix[1:])


def format_bytes(count: int) -> str:
    """A quantity of at least `count` bytes: whole Gi where that is exact, else Mi, rounded up."""
    mebibytes = -(-count // MI)
    return f"{mebibytes // 1024}Gi" if mebibytes % 1024 == 0 and mebibytes else f"{mebibytes}Mi"
