"""Hidden states, or a stage's named tensors in their place: cut by sequence, checked, and joined again."""

from collections.abc import Sequence
from typing import Any

import torch

from mooncake_store_connector.v0.batch import Span
from mooncake_store_connector.v0.guard import PairGuard
from mooncake_store_connector.v0.intermediate import is_intermediate, make_intermediate
from mooncake_store_connector.v0.values import Incoming, Outgoing, Part


def cut_states(states: Any, span: Span, guard: PairGuard | None) -> Outgoing | None:
    """The value of a sequence's rows; None if there are fewer rows than tokens."""
    if is_intermediate(states):
        tensors = {name: tensor[span.start : span.end] for name, tensor in states.items()}
        is_whole = bool(tensors) and all(len(tensor) == span.length for tensor in tensors.values())
        return Outgoing.of_named(tensors, guard) if is_whole else None
    if states is None:
        return None
    rows = states[span.start : span.end]
    return Outgoing.of_tensor(Part.of(rows), rows.device, guard) if len(rows) == span.length else None


def fit(value: Incoming, tokens: int, hidden_size: int | None, dtype: torch.dtype | None) -> bool:
    """Whether a value can be the hidden states of so many tokens of this model. None: not known, not checked."""
    if any(tensor.ndim == 0 or len(tensor) != tokens for tensor in value.tensors.values()):
        return False
    if value.tensor is None:
        return True
    if value.tensor.ndim == 2 and hidden_size is not None and value.tensor.shape[1] != hidden_size:
        return False
    return dtype is None or bool(value.tensor.dtype == dtype)


def take_states(value: Incoming, device: torch.device) -> Any:
    """The states as tensors of their own on a device."""
    tensors = {name: tensor.to(device, copy=True) for name, tensor in value.tensors.items()}
    return make_intermediate(tensors) if value.is_named else next(iter(tensors.values()))


def join_states(states: Sequence[Any]) -> Any | None:
    """The states of a whole batch from those of its sequences; None if they are not of one kind."""
    if all(isinstance(one, torch.Tensor) for one in states):
        return _join(states)
    if not all(is_intermediate(one) and one.tensors.keys() == states[0].tensors.keys() for one in states):
        return None
    joined = {name: _join([one.tensors[name] for one in states]) for name in states[0].tensors}
    return None if any(tensor is None for tensor in joined.values()) else make_intermediate(joined)


def _join(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    if len({(tensor.dtype, tensor.shape[1:]) for tensor in tensors}) != 1:
        return None
    return torch.cat(list(tensors), dim=0) if len(tensors) > 1 else tensors[0]
