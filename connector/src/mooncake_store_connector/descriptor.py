"""What stands behind a namespace's digest, in a form that people read: a JSON text, once per namespace in the store.

The facts are those that decided the digest, so two descriptors tell why two engines share KV or do not.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mooncake_store_connector.problems import ConfigError, Problem

VERSION: Final = 1
LARGEST: Final = 32 * 1024
"""Bytes of a descriptor at most: it travels in one message, and nothing but eyes needs it."""
# A fact too long to be kept whole keeps its beginning and a digest, so that other facts still look other.
_LENGTHS: Final = (2000, 400, 60)


@dataclass(frozen=True)
class Descriptor:
    """A namespace, and what it was derived from."""

    namespace: str
    prefix: str
    facts: Mapping[str, str]


def descriptor_key(namespace: str) -> str:
    """The name of the descriptor's object. No block has it: their names go on with a number."""
    return f"{namespace}:descriptor"


def write_descriptor(descriptor: Descriptor) -> str:
    """Its text, of at most `LARGEST` bytes; empty where no shortening gets it there."""
    for length in _LENGTHS:
        facts = {name: _shortened(fact, length) for name, fact in descriptor.facts.items()}
        text = json.dumps(describe(replace(descriptor, facts=facts)), sort_keys=True)
        if len(text.encode()) <= LARGEST:
            return text
    return ""


def describe(descriptor: Descriptor) -> dict[str, object]:
    """The object that stands in the text."""
    return {
        "v": VERSION,
        "namespace": descriptor.namespace,
        "cache_prefix": descriptor.prefix,
        "facts": dict(descriptor.facts),
    }


def read_descriptor(text: str, where: str) -> Descriptor:
    """The descriptor that a text holds. Raises ConfigError naming `where`."""
    remedy = "it must hold a descriptor, as `doctor describe` prints it"
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError([Problem(where, f"not JSON ({error})", remedy)]) from error
    if not isinstance(values, dict) or values.get("v") != VERSION:
        raise ConfigError([Problem(where, f"not a descriptor of version {VERSION}", remedy)])
    namespace, prefix, facts = values.get("namespace"), values.get("cache_prefix"), values.get("facts")
    if not (isinstance(namespace, str) and isinstance(prefix, str) and isinstance(facts, dict)):
        raise ConfigError([Problem(where, "a descriptor that lacks namespace, cache_prefix or facts", remedy)])
    return Descriptor(namespace, prefix, {name: str(fact) for name, fact in facts.items()})


def _shortened(fact: str, length: int) -> str:
    if len(fact) <= length:
        return fact
    return f"{fact[:length]}... (sha256 {hashlib.sha256(fact.encode()).hexdigest()[:16]})"
