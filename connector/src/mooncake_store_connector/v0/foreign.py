"""Any object with `put` and `get`, seen as the connector sees its own store: a user may set `kv_store` to one."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mooncake_store_connector.counters import Counters
from mooncake_store_connector.v0.values import TENSOR, Incoming, Outgoing

logger = logging.getLogger("vllm.mooncake_store_connector.v0")


class ForeignStore:
    """Has what the connector uses of `MooncakeStore`. Knows no named tensors, no guard, and removes nothing."""

    def __init__(self, store: Any) -> None:
        self.counters = Counters()
        self.store = store

    def has_all(self, *_keys: str) -> bool:
        """Such a store cannot be asked."""
        return False

    def write(self, values: Mapping[str, Outgoing]) -> bool:
        """Put each tensor."""
        for key, value in values.items():
            if TENSOR not in value.parts:
                return False
            part = value.parts[TENSOR]
            tensor = torch.empty(part.shape, dtype=part.dtype)
            part.fill(tensor)
            self.store.put(key, tensor)
        return True

    def read(self, key: str, lead: int = 0) -> Incoming | None:
        """Get a tensor."""
        del lead
        tensor = self.store.get(key)
        return None if tensor is None else Incoming({TENSOR: tensor})

    def discard(self, keys: Sequence[str], why: str) -> None:
        """Only tell."""
        logger.warning("Not used: %s: %s", ", ".join(keys), why)
