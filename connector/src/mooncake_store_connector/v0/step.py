"""One step of the engine, as far as the connector looks at it: tokens, slots, sequences and this stage's caches."""

from dataclasses import dataclass
from typing import Any

import torch

from mooncake_store_connector.v0.batch import Batch, Span, split_batch
from mooncake_store_connector.v0.kv_helper import ModelAwareKVHelper


@dataclass(frozen=True)
class Step:
    """Taken from `model_executable`, `model_input` and `kv_caches`. `slots` may be on a device; `host_slots` is not."""

    batch: Batch
    tokens: torch.Tensor
    slots: torch.Tensor
    host_slots: torch.Tensor
    first_layer: int
    caches: tuple[torch.Tensor, ...]
    """The cache of each layer of this stage."""
    num_heads: int
    head_size: int
    slot_count: int
    hidden_size: int | None

    @property
    def device(self) -> torch.device:
        """Where the caches are."""
        return self.caches[0].device

    def kv_shape(self, span: Span) -> tuple[int, ...]:
        """The shape of a sequence's KV value."""
        return (2, len(self.caches), span.length, self.num_heads, self.head_size)

    def has_valid_slots(self, span: Span) -> bool:
        """Whether each of a sequence's slots is in the cache or negative, which stands for none."""
        slots = self.host_slots[span.start : span.end]
        return len(slots) == span.length and int(slots.max()) < self.slot_count

    def has_all_slots(self, span: Span) -> bool:
        """Whether each of a sequence's tokens has a slot."""
        return self.has_valid_slots(span) and int(self.host_slots[span.start : span.end].min()) >= 0


def read_step(
    helper: ModelAwareKVHelper, model_executable: Any, model_input: Any, kv_caches: list[torch.Tensor]
) -> Step:
    """Read a step. Raises what a model or an input without the expected attributes raises."""
    attention = model_input.attn_metadata
    tokens = model_input.input_tokens
    slots = attention.slot_mapping.flatten().to(torch.int64)
    model = model_executable.model
    caches = tuple(kv_caches[: model.end_layer - model.start_layer])
    num_heads, head_size = helper.get_model_args(model_executable)
    hidden_size = getattr(model.config, "hidden_size", None)
    return Step(
        batch=split_batch(
            [int(length) for length in (attention.seq_lens if attention.seq_lens is not None else ())],
            int(attention.num_prefill_tokens),
            tokens=len(tokens),
            slots=len(slots),
            prefills=_count_prefills(attention),
        ),
        tokens=tokens.detach().cpu(),
        slots=slots,
        host_slots=slots.cpu(),
        first_layer=int(model.start_layer),
        caches=caches,
        num_heads=num_heads,
        head_size=head_size,
        slot_count=helper.count_slots(caches[0], num_heads, head_size) if caches else 0,
        hidden_size=hidden_size if isinstance(hidden_size, int) else None,
    )


def _count_prefills(attention: Any) -> int | None:
    """vLLM tells the number of prefill sequences; the connector's documentation does not ask it to."""
    found = getattr(attention, "num_prefills", None)
    return found if isinstance(found, int) else None
