"""The base class of V0 connectors, which current vLLM no longer has."""

from abc import ABC, abstractmethod
from typing import Any

import torch


class KVConnectorBase(ABC):
    """What vLLM 0.9's first engine ("V0") asks of a connector. `install` makes vLLM's own class accept ours."""

    @abstractmethod
    def __init__(self, rank: int, local_rank: int, config: Any) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Release what the connector holds."""

    @abstractmethod
    def send_kv_caches_and_hidden_states(
        self,
        model_executable: Any,
        model_input: Any,
        kv_caches: list[torch.Tensor],
        hidden_or_intermediate_states: Any,
    ) -> None:
        """Send what a prefill step computed."""

    @abstractmethod
    def recv_kv_caches_and_hidden_states(
        self, model_executable: Any, model_input: Any, kv_caches: list[torch.Tensor]
    ) -> tuple[Any, bool, Any]:
        """Receive it. Returns the states or None, whether the model need not run, and the model's input."""
