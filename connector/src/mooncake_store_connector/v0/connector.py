"""`MooncakeStoreConnector` of vLLM 0.9's first engine ("V0"): KV and hidden states from prefill to decode by a store.

For each sequence of a prefill step the producer puts two values, its KV and its hidden states. The consumer gets both
before the same step, writes the KV into its cache, and need not run the model if that worked for every sequence.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

import torch

from mooncake_store_connector.client import CONFIG_ENV
from mooncake_store_connector.namespace import describe_kv
from mooncake_store_connector.v0.base import KVConnectorBase
from mooncake_store_connector.v0.batch import Span
from mooncake_store_connector.v0.counts import Count
from mooncake_store_connector.v0.exchange import Exchange, Store
from mooncake_store_connector.v0.foreign import ForeignStore
from mooncake_store_connector.v0.keys import Keyspace, SequenceKeys, describe_rank
from mooncake_store_connector.v0.kv_helper import ModelAwareKVHelper
from mooncake_store_connector.v0.settings import read_settings
from mooncake_store_connector.v0.states import join_states
from mooncake_store_connector.v0.step import Step, read_step
from mooncake_store_connector.v0.store import MooncakeStore

logger = logging.getLogger("vllm.mooncake_store_connector.v0")

NAME: Final = "MooncakeStoreConnector"
# Of what decides the bytes of KV: what does not, in this format, which knows neither blocks nor vLLM's block hashes.
_IRRELEVANT: Final = ("block_size", "hash", "attention", "vllm")


class MooncakeStoreConnector(KVConnectorBase):
    """Moves KV and hidden states between prefill and decode workers through a Mooncake store.

    Constructor, attributes, methods, keys and values are those of the class of this name in vLLM 0.9, so that code
    written for it, and workers that run it, can be served by this one. Where that class had faults, each method says
    what is different here.

    What it is made from:

    - `rank`: this worker's rank among all workers of the engine, stage by stage.
    - `local_rank`: its rank on its node. It names the rank in keys, unless there are several pipeline stages or a
      tensor parallel group spans nodes: then stage and tensor parallel rank, made from `rank`, do.
    - `config`: vLLM's `VllmConfig`. Read are `kv_transfer_config` (`kv_connector`, `kv_connector_extra_config`),
      `model_config` (`is_deepseek_mla`, `dtype`), `parallel_config` (`tensor_parallel_size`,
      `pipeline_parallel_size`) and `device_config.device_type`; with `pair_guard` also what decides the bytes of KV.

    What it has:

    - `kv_transfer_config`: `config.kv_transfer_config`.
    - `kv_helper`: the `ModelAwareKVHelper`.
    - `local_tp_rank`: `local_rank`.
    - `kv_store`: the `MooncakeStore`. Another object with `put` and `get` may be set in its place.

    What the constructor raises:

    - `ValueError` if `kv_transfer_config.kv_connector` is another name (vLLM 0.9 died of a missing attribute).
    - `ValueError` if the environment variable `MOONCAKE_CONFIG_PATH` is not set, as in vLLM 0.9.
    - `ConfigError`, which is a `ValueError`, if that file or `kv_connector_extra_config` cannot be used.

    A store that cannot be joined is no error: everything is a miss until it can.
    """

    def __init__(self, rank: int, local_rank: int, config: Any) -> None:
        self.kv_transfer_config = config.kv_transfer_config
        found = self.kv_transfer_config.kv_connector
        if found != NAME:
            msg = f"kv_connector is {found!r}; {NAME} expects {NAME!r}"
            raise ValueError(msg)
        if not os.environ.get(CONFIG_ENV):
            msg = f"{NAME} reads its store's address from a file; set {CONFIG_ENV}=/path/to/mooncake_config.json"
            raise ValueError(msg)
        settings = read_settings(getattr(self.kv_transfer_config, "kv_connector_extra_config", None))
        self.kv_helper = ModelAwareKVHelper(config)
        self.local_tp_rank = local_rank
        self._keyspace = Keyspace(
            describe_rank(rank, local_rank, self.kv_helper.tp_size, _stages(config)), settings.cache_prefix
        )
        dtype = getattr(getattr(config, "model_config", None), "dtype", None)
        self._exchange = Exchange(
            self.kv_helper,
            _describe_model(config) if settings.pair_guard else None,
            dtype if isinstance(dtype, torch.dtype) else None,
        )
        self.kv_store: Any = MooncakeStore(config, local_rank)
        self._foreign: ForeignStore | None = None

    def close(self) -> None:
        """Leave the store; client, buffers and the lent segment are freed. A second call does nothing.

        In vLLM 0.9 closing the store did nothing.
        """
        self.kv_store.close()

    def send_kv_caches_and_hidden_states(
        self,
        model_executable: Any,
        model_input: Any,
        kv_caches: list[torch.Tensor],
        hidden_or_intermediate_states: Any,
    ) -> None:
        """Put the KV and the hidden states of each prefill sequence of a step. Blocks until they are stored.

        What is read:

        - `model_executable`: its `model` has `start_layer` and `end_layer`, the layers of this pipeline stage, and
          `config`, from which the KV geometry is read.
        - `model_input`: `input_tokens`, integers `[tokens]`, all sequences one after another;
          `attn_metadata.seq_lens`, a list of lengths in tokens; `attn_metadata.slot_mapping`, integers, flattened
          before use; `attn_metadata.num_prefill_tokens`.
        - `kv_caches`: that of layer `start_layer + i` at `i`, `[2, blocks, block size, kv heads, head size]`; with
          MLA `[blocks, block size, latent size]`. Any dtype; bits are sent as they are.
        - `hidden_or_intermediate_states`: `[tokens, ...]` of any dtype, or `IntermediateTensors` of such.

        Sequence `i` has the tokens from `sum(seq_lens[:i])` on. Its KV value is one tensor `[2, layers of the stage,
        tokens, kv heads, head size]`, keys first; with MLA one head, and the latents twice. Values are safetensors
        files with the tensor and the sender's CUDA index (vLLM 0.9 reads them).

        Different from vLLM 0.9: sending stops at `num_prefill_tokens`. Nothing is sent, with a warning, when the
        prefill `seq_lens` do not sum to it, because then sequences have a cached part and lie elsewhere. A sequence
        with a negative slot is not sent. `IntermediateTensors` are stored, in one value. A sequence that is stored
        already is not copied again. A put that fails is logged and counted.

        Raises TypeError if the tokens are bfloat16, and what objects without these attributes raise.
        """
        step = read_step(self.kv_helper, model_executable, model_input, kv_caches)
        store = self._store()
        if self._refuses(store, step):
            return
        for span in step.batch.prefills:
            if span.length == 0:
                continue
            keys = self._keys(step, span)
            store.counters.add(self._send(store, step, span, keys, hidden_or_intermediate_states))
        logger.debug("Sent %d sequences", len(step.batch.prefills))

    def recv_kv_caches_and_hidden_states(
        self, model_executable: Any, model_input: Any, kv_caches: list[torch.Tensor]
    ) -> tuple[Any, bool, Any]:
        """Get the KV and the hidden states of each prefill sequence of a step, and write the KV to its slots.

        The arguments are those of `send_kv_caches_and_hidden_states`; `kv_caches` are written to, at the slots of
        sequences that were found, and nowhere else. Nothing is written for negative slots.

        The result is `(hidden_or_intermediate_states, bypass_model_exec, model_input)`:

        - If both values of every sequence were found: their hidden states joined along the first dimension, on the
          device of the caches, `[prefill tokens, ...]`, or `IntermediateTensors` of such; and True.
        - Else None and False: the model has to run. The KV of sequences that were found is written all the same.
        - `model_input` as it was given.

        A miss is: a value that is not there or does not come; one that is not whole, which is removed from the store;
        one of another shape or dtype, which is left there, with one warning; a sequence of no tokens. A sequence that
        starts at or past `num_prefill_tokens` is decode work: a warning, and the model runs (vLLM 0.9 also asserted).
        An empty batch is `(None, False, model_input)` (vLLM 0.9 raised). Prefill `seq_lens` that do not sum to
        `num_prefill_tokens` are warned of, and nothing is received (vLLM 0.9 loaded shifted sequences).

        Raises TypeError if the tokens are bfloat16, and what objects without these attributes raise; nothing else,
        whatever the store does. A store that does not answer costs the time of one call, then is left alone a while.
        """
        step = read_step(self.kv_helper, model_executable, model_input, kv_caches)
        store = self._store()
        if self._refuses(store, step):
            return None, False, model_input
        received = [self._receive(store, step, span) for span in step.batch.prefills]
        if step.batch.has_decode:
            store.counters.add(Count.MIXED_BATCHES)
            logger.warning(
                "Decode work is mixed into a prefill step, which is then computed. Avoid it with "
                "--enable_chunked_prefill=False and --max_num_batched_tokens equal to max_seq_len_to_capture"
            )
            return None, False, model_input
        if not received or any(states is None for states in received):
            logger.debug("Received %d of %d sequences", sum(one is not None for one in received), len(received))
            return None, False, model_input
        joined = join_states(received)
        if joined is not None:
            store.counters.add(Count.BYPASSED_BATCHES)
        return joined, joined is not None, model_input

    @staticmethod
    def tensor_hash(tensor: torch.Tensor) -> int:
        """The hash that names a sequence: the first 16 hexadecimal digits of BLAKE2b over the tensor's bytes.

        The bytes are those of the elements in C order, as they are: int32 and int64 tokens of the same numbers have
        different hashes. Returns an integer below 2^64. Raises TypeError for bfloat16, which NumPy does not have.
        """
        data = tensor.detach().cpu().numpy().tobytes()
        return int(hashlib.blake2b(data).hexdigest()[:16], 16)

    def _send(self, store: Store, step: Step, span: Span, keys: SequenceKeys, states: Any) -> Count:
        """What became of a sequence. Whatever goes wrong, the engine has its own KV and goes on."""
        try:
            return self._exchange.send(store, step, span, keys, states)
        except Exception:
            logger.exception("Sending a sequence of %d tokens failed", span.length)
            return Count.UNSENT_SEQUENCES

    def _receive(self, store: Store, step: Step, span: Span) -> Any | None:
        """A sequence's states, or None for a miss. Whatever goes wrong, the model can be run."""
        states = None
        if span.length:
            keys = self._keys(step, span)
            try:
                states = self._exchange.receive(store, step, span, keys)
            except Exception:
                logger.exception("Receiving a sequence of %d tokens failed", span.length)
        store.counters.add(Count.MISSED_SEQUENCES if states is None else Count.RECEIVED_SEQUENCES)
        return states

    def _keys(self, step: Step, span: Span) -> SequenceKeys:
        return self._keyspace.keys_of(self.tensor_hash(step.tokens[span.start : span.end]))

    def _refuses(self, store: Store, step: Step) -> bool:
        """Whether nothing of a step can be trusted; tells why."""
        if not step.batch.problem:
            return False
        store.counters.add(Count.REFUSED_BATCHES)
        logger.warning(
            "Nothing of this step is sent or received: %s. This connector needs prefix caching and chunked prefill off",
            step.batch.problem,
        )
        return True

    def _store(self) -> Store:
        if isinstance(self.kv_store, MooncakeStore):
            return self.kv_store
        if self._foreign is None or self._foreign.store is not self.kv_store:
            self._foreign = ForeignStore(self.kv_store)
        return self._foreign


def _stages(config: Any) -> int:
    found = getattr(config.parallel_config, "pipeline_parallel_size", 1)
    return found if isinstance(found, int) else 1


def _describe_model(config: Any) -> Mapping[str, str]:
    """What two engines must have in common so that one can use the other's KV."""
    facts = describe_kv(config, {}, None, "")
    model = str(getattr(config.model_config, "model", ""))
    return {"model": model, **{name: fact for name, fact in facts.items() if name not in _IRRELEVANT}}
