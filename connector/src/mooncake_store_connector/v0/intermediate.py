"""`IntermediateTensors`: what a pipeline stage other than the last hands on, in place of hidden states.

vLLM's class of that name is used where vLLM is loaded; it is never imported from here.
"""

import sys
from collections.abc import ItemsView
from typing import Any

import torch


class IntermediateTensors:
    """Named tensors with one row for each token of a batch. Behaves like vLLM's class of that name."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, key: str | slice) -> Any:
        """The tensor of a name; for a slice, these rows of all tensors, as an object of this class."""
        if isinstance(key, str):
            return self.tensors[key]
        return type(self)({name: tensor[key] for name, tensor in self.tensors.items()})

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        self.tensors[key] = value

    def items(self) -> ItemsView[str, torch.Tensor]:
        """Names and tensors."""
        return self.tensors.items()

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self.tensors)

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same names and equal tensors."""
        theirs = getattr(other, "tensors", None)
        if not isinstance(theirs, dict) or theirs.keys() != self.tensors.keys():
            return False
        return all(torch.equal(tensor, theirs[name]) for name, tensor in self.tensors.items())

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"IntermediateTensors(tensors={self.tensors})"


def is_intermediate(value: object) -> bool:
    """Whether it is an `IntermediateTensors`, ours or vLLM's."""
    return isinstance(value, (IntermediateTensors, _vllm_class() or IntermediateTensors))


def make_intermediate(tensors: dict[str, torch.Tensor]) -> Any:
    """An `IntermediateTensors`: vLLM's where vLLM has loaded it, else ours."""
    return (_vllm_class() or IntermediateTensors)(tensors)


def _vllm_class() -> type | None:
    found = getattr(sys.modules.get("vllm.sequence"), "IntermediateTensors", None)
    return found if isinstance(found, type) else None
