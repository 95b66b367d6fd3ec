"""Sends one sequence to the store, and receives one."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from mooncake_store_connector.counters import Counters
from mooncake_store_connector.namespace import derive_namespace
from mooncake_store_connector.v0.batch import Span
from mooncake_store_connector.v0.counts import Count
from mooncake_store_connector.v0.guard import PairGuard, Verdict, judge_pair, judge_value
from mooncake_store_connector.v0.keys import SequenceKeys
from mooncake_store_connector.v0.kv_helper import ModelAwareKVHelper
from mooncake_store_connector.v0.states import cut_states, fit, take_states
from mooncake_store_connector.v0.step import Step
from mooncake_store_connector.v0.values import Incoming, Outgoing, Part

logger = logging.getLogger("vllm.mooncake_store_connector.v0")


class Store(Protocol):
    """What is used of a store: `MooncakeStore`, or a `ForeignStore` around another object."""

    counters: Counters

    def has_all(self, *keys: str) -> bool:
        """Whether all these keys are there."""

    def write(self, values: Mapping[str, Outgoing]) -> bool:
        """Store several values; whether the store has them now."""

    def read(self, key: str, lead: int = 0) -> Incoming | None:
        """A value, until the next call."""

    def discard(self, keys: Sequence[str], why: str) -> None:
        """Remove values that can never be right."""


class Exchange:
    """Moves sequences between the caches of a step and a store."""

    def __init__(
        self, helper: ModelAwareKVHelper, facts: Mapping[str, str] | None, hidden_dtype: torch.dtype | None
    ) -> None:
        """`facts` say what the model is, for the pair guard; None without it."""
        self._helper = helper
        self._facts = facts
        self._hidden_dtype = hidden_dtype
        self._has_warned = False

    def send(self, store: Store, step: Step, span: Span, keys: SequenceKeys, states: Any) -> Count:
        """Put a sequence's KV and states. Returns what became of it."""
        if not step.has_all_slots(span):
            logger.warning("A sequence of %d tokens is not sent: not all of them have a slot in the cache", span.length)
            return Count.UNSENT_SEQUENCES
        guard = PairGuard(self._identity(step)) if self._facts is not None else None
        hidden = cut_states(states, span, guard)
        if hidden is None:
            logger.warning("A sequence of %d tokens is not sent: there are not as many hidden states", span.length)
            return Count.UNSENT_SEQUENCES
        if store.has_all(keys.kv, keys.hidden):
            return Count.KNOWN_SEQUENCES
        kv = Outgoing.of_tensor(self._kv_part(step, span), step.device, guard)
        stored = store.write({keys.kv: kv, keys.hidden: hidden})
        return Count.SENT_SEQUENCES if stored else Count.UNSENT_SEQUENCES

    def receive(self, store: Store, step: Step, span: Span, keys: SequenceKeys) -> Any | None:
        """Get a sequence's KV and states, write the KV to its slots, and return the states. None for a miss."""
        if not step.has_valid_slots(span):
            logger.warning("A sequence of %d tokens is not received: a slot is outside of the cache", span.length)
            return None
        hidden = self._read(store, step, keys.hidden)
        if hidden is None:
            return None
        if not fit(hidden, span.length, step.hidden_size, self._hidden_dtype):
            self._misfit(store, keys.hidden, "has another shape or dtype than this model's hidden states")
            return None
        states = take_states(hidden, step.device)
        kv = self._read(store, step, keys.kv, self._lead(step, span))
        if kv is None or (self._facts is not None and not self._is_pair(store, keys, hidden, kv)):
            return None
        if kv.tensor is None or kv.tensor.shape != step.kv_shape(span) or kv.tensor.dtype != step.caches[0].dtype:
            self._misfit(store, keys.kv, "has another shape or dtype than this model's KV")
            return None
        self._write_cache(step, span, kv.tensor)
        return states

    def _kv_part(self, step: Step, span: Span) -> Part:
        slots = step.slots[span.start : span.end]

        def gather(target: torch.Tensor) -> None:
            for layer, cache in enumerate(step.caches):
                self._helper.gather(cache, slots, target[:, layer])

        return Part(step.caches[0].dtype, step.kv_shape(span), gather)

    def _lead(self, step: Step, span: Span) -> int:
        """Where a KV value begins so that its rows are aligned, if it is written as this one would write it."""
        guard = PairGuard(self._identity(step)) if self._facts is not None else None
        return Outgoing.of_tensor(self._kv_part(step, span), step.device, guard).lead

    def _write_cache(self, step: Step, span: Span, kv: torch.Tensor) -> None:
        slots = step.slots[span.start : span.end]
        if not step.has_all_slots(span):
            kept = (step.host_slots[span.start : span.end] >= 0).nonzero().flatten()
            slots, kv = slots[kept.to(slots.device)], kv[:, :, kept.to(kv.device)]
        for layer, cache in enumerate(step.caches):
            self._helper.scatter((kv[0, layer], kv[1, layer]), cache, slots)
        if step.device.type == "cuda":
            # The rows are copied from memory that the next read overwrites.
            torch.cuda.current_stream(step.device).synchronize()

    def _read(self, store: Store, step: Step, key: str, lead: int = 0) -> Incoming | None:
        """A value, if it is there and nothing in its guard speaks against it."""
        value = store.read(key, lead)
        if value is None or self._facts is None:
            return value
        verdict = judge_value(value.metadata, self._identity(step), value.checksum())
        if verdict is Verdict.GOOD:
            return value
        if verdict is Verdict.DAMAGED:
            store.discard([key], "it is damaged: its checksum does not fit")
        else:
            self._misfit(store, key, verdict.value)
        return None

    def _is_pair(self, store: Store, keys: SequenceKeys, hidden: Incoming, kv: Incoming) -> bool:
        if judge_pair(hidden.metadata, kv.metadata) is Verdict.GOOD:
            return True
        store.counters.add(Count.TORN_PAIRS)
        store.discard([keys.kv, keys.hidden], "they were not written together")
        return False

    def _misfit(self, store: Store, key: str, why: str) -> None:
        """Count a value that is not for this model, and tell of the first."""
        store.counters.add(Count.MISFIT_VALUES)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "The value of %s %s; it is left where it is. Give models that share a store different values of "
                "cache_prefix in kv_connector_extra_config. Told once; later ones are only counted",
                key,
                why,
            )

    def _identity(self, step: Step) -> str:
        """The model and this stage's layers, as a digest."""
        layers = f"{step.first_layer}:{step.first_layer + len(step.caches)}"
        return derive_namespace("", {**(self._facts or {}), "stage": layers})
