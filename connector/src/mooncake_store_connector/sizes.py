"""What a size means: Kubernetes quantities, the spellings of vLLM and Mooncake, and plain bytes.

The table is in docs/mooncake-config.md, and a test holds it against this module. One rule settles the clash of the two
worlds: a unit that Kubernetes knows means what Kubernetes says (`4G` is 4 x 10^9); a unit that ends in `b` or `B`
means powers of 1024, as vLLM and Mooncake read it (`4GB` is 4 GiB).
"""

import re
from decimal import Decimal, DecimalException
from typing import Final

from mooncake_store_connector.problems import ConfigError, Problem

_REMEDY: Final = "write a quantity such as 4Gi, or bytes as an integer"
_KUBERNETES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
# Compared in lower case. Kubernetes knows none of these.
_MOONCAKE: Final = {
    "b": 1,
    "kb": 2**10,
    "mb": 2**20,
    "gb": 2**30,
    "tb": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_FORM: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
MAX_SIZE: Final = 2**63 - 1


def parse_size(value: object, path: str) -> int:
    """Bytes that `value` means. Raises ConfigError naming `path`.

    Accepts an integer, an integral float, or a string of a number and a unit. A fraction of a unit is cut off to whole
    bytes; a fraction of a byte is refused.
    """
    if isinstance(value, bool) or value is None:
        raise _wrong(path, "true or false" if isinstance(value, bool) else "nothing")
    if isinstance(value, int):
        return _checked(Decimal(value), path, str(value) if abs(value) < 10**30 else "an integer")
    if isinstance(value, float):
        if not value.is_integer():
            raise _wrong(path, f"{value!r} bytes")
        return _checked(Decimal(value), path, repr(value))
    if not isinstance(value, str):
        raise _wrong(path, f"a {type(value).__name__}")
    return _checked(_parse_text(value, path), path, _quoted(value))


def _parse_text(text: str, path: str) -> Decimal:
    form = _FORM.fullmatch(text)
    if form is None:
        raise _wrong(path, _quoted(text) if text.strip() else "an empty size")
    number, unit = form.groups()
    factor = _KUBERNETES.get(unit, _MOONCAKE.get(unit.lower()))
    if factor is None:
        if unit.lower() in ("k", "m", "g", "t"):
            upper = "k" if unit.lower() == "k" else unit.upper()
            binary = unit.upper() + "i"
            raise _wrong(path, f"{text!r}, which tools read differently", f"write {number}{binary} or {number}{upper}")
        raise _wrong(path, f"{_quoted(text)} with an unknown unit")
    size = _product(number, factor)
    if unit.lower() in ("", "b") and size <= MAX_SIZE and size % 1:
        raise _wrong(path, f"{text!r}, a fraction of a byte")
    return size


def _product(number: str, factor: int) -> Decimal:
    """number x factor; one too large for any arithmetic becomes infinity, which is out of range."""
    try:
        return Decimal(number) * factor
    except DecimalException:
        return Decimal("Infinity")


def _checked(size: Decimal, path: str, found: str) -> int:
    # Compared before it becomes an integer: "1e999999" would fill the memory.
    if not 0 <= size <= MAX_SIZE:
        raise _wrong(path, f"{found}, out of range")
    return int(size)


def _quoted(text: str) -> str:
    """The text as it was written, shortened to what a message can hold."""
    return repr(text) if len(text) <= 40 else repr(text[:37] + "...")


def _wrong(path: str, found: str, remedy: str = _REMEDY) -> ConfigError:
    return ConfigError([Problem(path, f"found {found}", remedy)])


# Mooncake 0.3.13 refuses a segment of 4 MiB (-600 from setup) and mounts one of 16. Other builds were reported to
# fail at odd sizes, so a segment is a whole number of such pieces.
SEGMENT_ALIGNMENT: Final = 16 * 2**20


def align_segment(size: int) -> int:
    """The largest segment of at most `size` bytes that the allocator can mount. Sizes below one piece become 0."""
    return size // SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT
