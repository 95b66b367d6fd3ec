"""Engines without a model: vLLM's scheduler and connector hooks are real, and so are the agent and the store.

Run in the engines' environment; a JSON call a line, see `v0/worker.py`. The model is that of `chain`: a step reads all
KV before it, writes its own, and answers a wrong token as soon as one byte that it read is not what it should be. So
wrong KV spreads as in a model, and is told from the answer alone. Steps and hooks come in the order of vLLM's own
runners: that of CPUs (`Scheduler`), and that of GPUs with one step scheduled ahead (`AsyncScheduler`).
"""

import json
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from mooncake_store_connector.handoff import build_hint, build_params
from vllm import SamplingParams
from vllm.config import KVEventsConfig, KVTransferConfig, set_current_vllm_config
from vllm.distributed.kv_events import EventBatch, EventPublisher, KVEventBatch
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from connector.v0.worker import serve
from connector.v1.chain import WRONG_TOKEN, extend, next_token

BLOCK = 16
HEADS, HEAD_SIZE, LAYERS = 2, 8, 3
# A head's keys and values of one token, in words of eight bytes.
WORDS = 2 * HEAD_SIZE * 2 // 8
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": 50_000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@dataclass
class _Sequence:
    """A request as the model runner keeps it."""

    tokens: list[int]
    blocks: list[list[int]]
    prompt: int
    states: list[int] = field(default_factory=list)

    def known(self) -> list[int]:
        """The chain's state after each token."""
        if len(self.states) < len(self.tokens):
            last = self.states[-1] if self.states else 0
            self.states += extend(last, self.tokens[len(self.states) :])
        return self.states


@dataclass
class _Answer:
    """What came of a request."""

    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    external: int = 0
    local: int = 0
    params: dict[str, Any] | None = None


class Model:
    """KV caches, and a forward pass over them."""

    def __init__(self, windows: Sequence[int | None], blocks: int) -> None:
        self._windows = windows
        shape = (blocks, HEADS, BLOCK, 2 * HEAD_SIZE)
        self.layers = [[f"group{group}.layer{layer}" for layer in range(LAYERS)] for group in range(len(windows))]
        self.caches = {name: torch.full(shape, -1, dtype=torch.bfloat16) for names in self.layers for name in names}
        self._words = {name: cache.view(torch.int64).numpy() for name, cache in self.caches.items()}
        self._sequences: dict[str, _Sequence] = {}

    def run(self, output: Any) -> ModelRunnerOutput:
        """One step. The sampled tokens, in vLLM's form."""
        computed = self._follow(output)
        sampled = [self._forward(name, computed[name], count) for name, count in output.num_scheduled_tokens.items()]
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)

    def _follow(self, output: Any) -> dict[str, int]:
        """Take over what the scheduler says of its requests. Tokens computed of each that is scheduled."""
        for name in output.finished_req_ids:
            self._sequences.pop(name, None)
        computed = {}
        for new in output.scheduled_new_reqs:
            tokens = list(new.prefill_token_ids or new.prompt_token_ids)
            self._sequences[new.req_id] = _Sequence(tokens, [list(ids) for ids in new.block_ids], new.prompt_len)
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, name in enumerate(cached.req_ids):
            one, ids = self._sequences[name], cached.new_block_ids[index]
            if name in cached.resumed_req_ids:
                one.tokens, one.states = list(cached.all_token_ids[name]), []
                one.blocks = [list(group) for group in ids]
            elif ids is not None:
                for blocks, added in zip(one.blocks, ids, strict=True):
                    blocks.extend(added)
            # Tokens that the scheduler did not take: their KV had failed to load.
            kept = one.prompt + cached.num_output_tokens[index]
            del one.tokens[kept:], one.states[kept:]
            computed[name] = cached.num_computed_tokens[index]
        return computed

    def _forward(self, name: str, computed: int, count: int) -> list[int]:
        one = self._sequences[name]
        states, end = one.known(), computed + count
        is_sound = all(self._is_there(group, one, computed) for group in range(len(self._windows)))
        for group, blocks in enumerate(one.blocks):
            values = np.asarray(states[computed:end], dtype=np.int64)
            self._write(group, blocks, computed, values if is_sound else ~values)
        if end < len(one.tokens):
            return []
        one.tokens.append(next_token(states[end - 1]) if is_sound else WRONG_TOKEN)
        return one.tokens[-1:]

    def _is_there(self, group: int, one: _Sequence, computed: int) -> bool:
        """Whether all KV that the next token looks at is what it should be, in every layer, byte for byte."""
        window = self._windows[group]
        start = 0 if window is None else max(0, computed - (window - 1))
        at = np.arange(start, computed)
        blocks = np.asarray(one.blocks[group], dtype=np.int64)[at // BLOCK]
        values = np.asarray(one.known()[start:computed], dtype=np.int64)
        return all(
            np.array_equal(self._words[name][blocks, :, at % BLOCK, :], _kv(values, layer))
            for layer, name in enumerate(self.layers[group])
        )

    def _write(self, group: int, blocks: Sequence[int], start: int, values: Any) -> None:
        at = np.arange(start, start + len(values))
        chosen = np.asarray(blocks, dtype=np.int64)[at // BLOCK]
        for layer, name in enumerate(self.layers[group]):
            self._words[name][chosen, :, at % BLOCK, :] = _kv(values, layer)


def _kv(values: Any, layer: int) -> Any:
    """Keys and values of tokens: other words in every layer, head and place."""
    factors = 2 * (np.arange(HEADS * WORDS, dtype=np.int64).reshape(HEADS, WORDS) + 100 * layer) + 1
    return values[:, None, None] * factors


class Published(EventPublisher):  # type: ignore[misc]
    """Events as they would go over the wire. vLLM's own publisher does no more to them, and may lose the first."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def publish(self, events: EventBatch) -> None:
        whole = msgspec.msgpack.decode(msgspec.msgpack.encode(events), type=KVEventBatch)
        self.events += whole.events

    def shutdown(self) -> None:
        """Nothing is open."""


def _plain(event: Any) -> dict[str, Any]:
    """An event as JSON can say it."""
    fields = {"type": type(event).__name__, **msgspec.structs.asdict(event)}
    told = fields.get("block_hashes", [])
    hashes = [one.hex() if isinstance(one, bytes) else one for one in told]
    parent = fields.get("parent_block_hash")
    return {
        **fields,
        "block_hashes": hashes,
        "parent_block_hash": parent.hex() if isinstance(parent, bytes) else parent,
    }


class Engine:
    """A scheduler and one worker, each with its side of the connector."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._is_async = options.get("scheduler", "Scheduler") == "AsyncScheduler"
        self.windows = options.get("windows", [None])
        blocks = options.get("blocks", 200)
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        self._config = _config(name, options)
        self._config.cache_config.num_gpu_blocks = blocks
        self._config.scheduler_config.async_scheduling = self._is_async
        self._model = Model(self.windows, blocks)
        specs = [
            KVCacheGroupSpec(names, _spec(window))
            for names, window in zip(self._model.layers, self.windows, strict=True)
        ]
        caches_config = KVCacheConfig(blocks, [], specs)
        unit, hash_tokens = resolve_kv_cache_block_sizes(caches_config, self._config)
        hash_of = get_hash_fn_by_name(self._config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_of)
        self._hasher = get_request_block_hasher(hash_tokens, hash_of)
        self._unit = unit
        with self._current():
            scheduler = AsyncScheduler if self._is_async else Scheduler
            self.scheduler = scheduler(
                self._config,
                caches_config,
                StructuredOutputManager(self._config),
                block_size=unit,
                hash_block_size=hash_tokens,
                log_stats=True,
            )
            self._published = self.scheduler.kv_event_publisher = Published()
            self.worker = KVConnectorFactory.create_connector(self._config, KVConnectorRole.WORKER, caches_config)
            kv_transfer_state._KV_CONNECTOR_AGENT = self.worker
            self._runner = ActiveKVConnector(self._config, self._model.caches)
        self._ahead: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.answers: dict[str, _Answer] = {}
        self.lose_loads = False
        self._preemptions = 0
        self.counts: dict[str, float] = {}

    @contextmanager
    def _current(self) -> Iterator[None]:
        """As a process of its own: its configuration and runner are the process's."""
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(self._is_async))
        kv_transfer_state._KV_CONNECTOR_AGENT = getattr(self, "worker", None)
        with set_current_vllm_config(self._config):
            yield

    def add(
        self, name: str, prompt: list[int], max_tokens: int, params: dict[str, Any] | None, salt: str | None = None
    ) -> None:
        """A new request."""
        request = self._request(name, prompt, max_tokens, params, salt)
        self.answers[name] = _Answer()
        with self._current():
            self.scheduler.add_request(request)

    def _request(
        self, name: str, prompt: list[int], max_tokens: int, params: dict[str, Any] | None, salt: str | None = None
    ) -> Request:
        extra = {"kv_transfer_params": params} if params is not None else None
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, extra_args=extra)
        return Request(name, prompt, sampling, None, cache_salt=salt, block_hasher=self._hasher)

    def step(self) -> int:
        """Schedule a step, compute it, and take the output of the last, or of that before it. Tokens scheduled."""
        with self._current():
            output = self.scheduler.schedule()
            self._preemptions += len(output.preempted_req_ids or ())
            if self.lose_loads:
                _lose_loads(output)
            self._ahead.append((output, self._execute(output)))
            tokens = int(output.total_num_scheduled_tokens)
            ahead = 1 if self._is_async and tokens else 0
            while len(self._ahead) > ahead:
                self._take()
        return tokens

    def _execute(self, output: Any) -> ModelRunnerOutput:
        """The hooks of a worker, in the order of vLLM's runner for GPUs or for CPUs."""
        is_empty = not output.total_num_scheduled_tokens
        if self._is_async:
            if is_empty:
                return self._runner.no_forward(output)
            with set_forward_context(None, self._config):
                self._runner.pre_forward(output)
                result = self._model.run(output)
                self._runner.finish_forward()
                result.kv_connector_output = self._runner.post_forward(output.finished_req_ids)
            return result
        if is_empty:
            self._model.run(output)
            return KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self._config)
        with set_forward_context(None, self._config):
            hooks = KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(output)
            with hooks as connector_output:
                result = self._model.run(output)
        result.kv_connector_output = connector_output
        return result

    def _take(self) -> None:
        """The scheduler hears of the oldest step."""
        output, result = self._ahead.popleft()
        if (told := result.kv_connector_output) is not None:
            # Nothing of ours is asynchronous. vLLM asserts on an id that it does not wait for.
            assert not any((told.finished_sending, told.finished_recving, told.failed_recving))
        for outputs in self.scheduler.update_from_output(output, result).values():
            stats = outputs.scheduler_stats
            for name, amount in ((stats.kv_connector_stats if stats else None) or {}).items():
                if isinstance(amount, int | float):
                    self.counts[name] = self.counts.get(name, 0) + amount
            for one in outputs.outputs:
                answer = self.answers[one.request_id]
                assert answer.reason is None, "an answer after the last one"
                answer.tokens += one.new_token_ids
                answer.params = one.kv_transfer_params or answer.params
                if one.prefill_stats is not None:
                    answer.external = one.prefill_stats.num_external_cached_tokens
                    answer.local = one.prefill_stats.num_local_cached_tokens
                if one.finish_reason is not None:
                    answer.reason = str(one.finish_reason)

    def run(self, seconds: float) -> None:
        """Steps until all requests are over."""
        deadline = time.monotonic() + seconds
        while self.scheduler.has_requests() or self._ahead:
            assert time.monotonic() < deadline, f"requests do not end: {self.state()}"
            if not self.step():
                time.sleep(0.001)
        # One more, by which workers hear of what has just ended.
        self.step()

    def abort(self, name: str) -> None:
        with self._current():
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self) -> bool:
        """As after an update of the weights."""
        with self._current():
            return bool(self.scheduler.reset_prefix_cache(reset_connector=True))

    def forget(self) -> bool:
        """Empty the engine's own prefix cache."""
        return bool(self.scheduler.reset_prefix_cache())

    def promise(self, prompt: list[int]) -> dict[str, Any]:
        """What a prefill engine would say of a prompt."""
        hashes = self._request("hint", prompt, 1, None).block_hashes
        hint = build_hint(self.side()._state.namespace, len(prompt), self._unit, BLOCK, hashes)
        assert hint is not None
        return build_params(hint)

    def events(self) -> list[dict[str, Any]]:
        """What was published since the last call."""
        found, self._published.events = self._published.events, []
        return [_plain(event) for event in found]

    def keys(self, prompt: list[int]) -> list[str]:
        """The names of a prompt's objects in the store."""
        state = self.side()._state
        hashes = self._request("keys", prompt, 1, None).block_hashes
        return [f"{state.namespace}:{state.epoch}:tp0pp0:0:{one.hex()}" for one in hashes]

    def lose_words(self) -> None:
        """Let every attempt to word an event fail."""
        self.side()._events._words = None

    def notes(self) -> int | None:
        """How many blocks something is known of for events; None where there is no place for it."""
        events = self.side()._events
        return None if events is None else len(events._noted) + len(events._told)

    def side(self) -> Any:
        """The connector's side in the scheduler."""
        return self.scheduler.connector._scheduler

    def stage(self, name: str) -> str:
        """How far a request is, as the connector sees it."""
        prompt, request = self.side()._prompts.get(name), self.scheduler.requests.get(name)
        if request is None:
            return "over"
        if prompt is None:
            return str(request.status.name).lower()
        if prompt.ready is not None:
            return "ready"
        saving = self.side()._saving.get(name)
        return "loading" if saving is not None and saving.stored else "asked"

    def state(self) -> dict[str, Any]:
        """What is left over: all zero when nothing runs."""
        pool = self.scheduler.kv_cache_manager.block_pool
        waiting, running = self.scheduler.get_request_counts()
        return {
            "prompts": len(self.side()._prompts),
            "saving": len(self.side()._saving),
            "requests": len(self.scheduler.requests),
            "queued": waiting + running,
            "blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
        }

    def unsaved(self) -> int:
        """Blocks that were handed over and are not yet stored."""
        connection = self.worker._worker._connection
        return int(connection.ring.used) if connection is not None else 0

    def preemptions(self) -> int:
        return self._preemptions

    def spoil(self, name: str, token: int) -> None:
        """Change one byte of the KV of a running request."""
        group = len(self.windows) - 1
        block = self.scheduler.kv_cache_manager.get_block_ids(name)[group][token // BLOCK]
        cache = self._model.caches[self._model.layers[group][-1]]
        cache.view(torch.uint8)[block, -1, token % BLOCK, -1] ^= 1

    def close(self) -> None:
        for one in (self.scheduler, self.worker):
            one.shutdown()


class Bench:
    """Calls to engines by name."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}

    def open(self, name: str, options: dict[str, Any]) -> None:
        """A new engine, in the place of one of this name."""
        self.close(name)
        self._engines[name] = Engine(name, options)

    def usable(self, name: str) -> bool:
        """Whether its agent is there and has joined the store, as both sides see it."""
        one = self._engines[name]
        one.step()
        return bool(one.side()._state.is_usable and one.worker._worker._is_usable)

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        return getattr(self._engines[name], method)(*arguments)

    def answer(self, name: str, request: str) -> dict[str, Any]:
        """What came of a request so far."""
        return vars(self._engines[name].answers[request])

    def agent(self, name: str) -> int:
        """Its agent's process id."""
        return int(self._engines[name].worker._worker._process._process.pid)

    def counts(self, name: str) -> dict[str, float]:
        """What was counted since the engine began."""
        return self._engines[name].counts

    def lose_loads(self, name: str, wished: bool) -> None:
        """Let loads be of an agent whose memory no worker has any more."""
        self._engines[name].lose_loads = wished

    def close(self, name: str) -> None:
        one = self._engines.pop(name, None)
        if one is not None:
            one.close()


def _lose_loads(output: Any) -> None:
    plan = output.kv_connector_metadata.plan
    output.kv_connector_metadata.plan = replace(plan, loads=[replace(load, agent="gone") for load in plan.loads])


def _spec(window: int | None) -> Any:
    shape = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": HEAD_SIZE, "dtype": torch.bfloat16}
    return FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)


def _config(name: str, options: dict[str, Any]) -> Any:
    """What `vllm serve` would make of its arguments, for a tiny model that nobody loads."""
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    (folder / "config.json").write_text(json.dumps(_MODEL))
    transfer = KVTransferConfig(
        kv_connector="MooncakeStoreConnector",
        kv_connector_module_path="mooncake_store_connector.v1",
        kv_role=options.get("role", "kv_both"),
        engine_id=f"{os.getpid()}-{name}",
        kv_connector_extra_config={"cache_prefix": "hooks", "wait_ms": 20_000, **options.get("extra", {})},
    )
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=8192,
        block_size=BLOCK,
        max_num_seqs=options.get("at_once", 8),
        max_num_batched_tokens=options.get("step_tokens", 512),
        kv_transfer_config=transfer,
        disable_hybrid_kv_cache_manager=False,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=options.get("events", False), publisher="null"),
    )
    return arguments.create_engine_config()


def _make(_: str) -> Bench:
    init = f"file://{tempfile.mktemp(prefix='group-')}"  # noqa: S306 - made and removed by torch
    with set_current_vllm_config(_config("group", {})):
        init_distributed_environment(1, 0, init, 0, "gloo")
        initialize_model_parallel()
    return Bench()


if __name__ == "__main__":
    serve(_make)
