"""What `kv_connector_extra_config` may say to this connector. Pure, and without torch."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from mooncake_store_connector.problems import ConfigError, Problem

_PATH = "kv_connector_extra_config"


@dataclass(frozen=True)
class Settings:
    """All are off by default: then bytes and keys are those that every writer of this format uses."""

    cache_prefix: str = ""
    """Put before every key, with an @ between. Keeps models apart that share a store: keys name no model."""
    pair_guard: bool = False
    """Whether values say of which pair and model they are and what their checksum is, and readers insist on it."""


def read_settings(extra: object) -> Settings:
    """Read them from the extra config, if it is one. Raises ConfigError with every key that cannot be used."""
    if not isinstance(extra, Mapping):
        return Settings()
    problems = [problem for key, value in extra.items() if (problem := _check(key, value))]
    if problems:
        raise ConfigError(problems)
    return Settings(**extra)


def _check(key: object, value: object) -> Problem | None:
    known = {field.name: type(field.default) for field in fields(Settings)}
    where = f"{_PATH}.{key}"
    if key not in known:
        nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0)
        return Problem(where, "an unknown key", f"the nearest known key is {nearest[0]}")
    if type(value) is not known[str(key)]:
        wanted = "true or false" if known[str(key)] is bool else "a text"
        return Problem(where, f"found {value!r}", f"write {wanted}")
    return None
