"""What a duration means: Kubernetes' form ("1m30s", "5000ms") and plain milliseconds, as Mooncake's flags have them."""

import re
from typing import Final

from mooncake_store_connector.problems import ConfigError, Problem

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_PART: Final = re.compile(r"([0-9]+)(ms|s|m|h)")


def parse_duration_ms(value: object, path: str) -> int:
    """Milliseconds that `value` means: a string such as "60s", or an integer of milliseconds. Raises ConfigError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit():
            return int(text)
        parts = _PART.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(int(number) * _UNITS[unit] for number, unit in parts)
    raise ConfigError([Problem(path, f"found {value!r}", "write a duration such as 60s, 5000ms or 1h30m")])
