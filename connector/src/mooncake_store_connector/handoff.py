"""The hand-off from prefill to decode: what a prefill engine says will be in the store, and what decode makes of it.

The hint travels in `kv_transfer_params` under a key of our own. A router asks for it by sending the key with a version
alone; the prefill engine answers with the namespace, the number of tokens and the last block's hash. A decode engine
trusts none of it: it computes its own hashes, and waits only if its hash at that place is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

KEY: Final = "mooncake_store"
VERSION: Final = 1


@dataclass(frozen=True)
class Hint:
    """What will be in the store: whole blocks of `tokens` tokens in `namespace`, ending with the block `last_key`."""

    namespace: str
    tokens: int
    last_key: str


def build_request() -> dict[str, object]:
    """The `kv_transfer_params` by which a router asks prefill for a hint."""
    return {KEY: {"v": VERSION}}


def is_asked_for(params: Mapping[str, object] | None) -> bool:
    """Whether a request wants to be told what its KV will be stored under."""
    asked = (params or {}).get(KEY)
    return isinstance(asked, Mapping) and asked.get("v") == VERSION


def build_params(hint: Hint) -> dict[str, object]:
    """The `kv_transfer_params` that carry a hint."""
    return {KEY: {"v": VERSION, "ns": hint.namespace, "tokens": hint.tokens, "last_key": hint.last_key}}


def read_hint(params: Mapping[str, object] | None) -> Hint | None:
    """The hint in a request's `kv_transfer_params`, or None when there is none that makes sense."""
    told = (params or {}).get(KEY)
    if not isinstance(told, Mapping) or told.get("v") != VERSION:
        return None
    namespace, tokens, last_key = told.get("ns"), told.get("tokens"), told.get("last_key")
    if not isinstance(namespace, str) or not isinstance(last_key, str):
        return None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens <= 0:
        return None
    return Hint(namespace, tokens, last_key)


def build_hint(
    namespace: str, prompt_tokens: int, block_size: int, hash_size: int, hashes: Sequence[bytes]
) -> Hint | None:
    """The hint for a finished prompt: its whole blocks. None when it has none."""
    tokens = prompt_tokens // block_size * block_size
    index = tokens // hash_size - 1
    if index < 0 or index >= len(hashes):
        return None
    return Hint(namespace, tokens, hashes[index].hex())


def tokens_to_wait_for(
    hint: Hint | None, namespace: str, prompt_tokens: int, block_size: int, hash_size: int, hashes: Sequence[bytes]
) -> int:
    """How many tokens of its prompt a decode engine may expect from the store; 0 when it should not wait.

    One token is always computed, so a prompt of whole blocks can use all but its last block.
    """
    if hint is None or hint.namespace != namespace:
        return 0
    index = hint.tokens // hash_size - 1
    if index < 0 or index >= len(hashes) or hashes[index].hex() != hint.last_key:
        return 0
    return min(hint.tokens, (prompt_tokens - 1) // block_size * block_size)
