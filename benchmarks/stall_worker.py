"""One arm of the stall benchmark: vLLM's scheduler and one worker with a connector, and no model.

All of it is in one process, as in an engine with one rank. A step sleeps instead of computing, so that the connector's
own threads run beside the scheduler as they do beside a model. Every call that the scheduler makes of its connector is
timed: its stall is its time on the clock less the time that its thread was ready to run and had no core. That is what
it computed, and how long it waited for locks, for the interpreter and for answers.
"""

import gc
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - lets vLLM's own connector run on CPUs
from connector.v0.worker import serve
from vllm import SamplingParams
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

BLOCK: Final = 16
HEADS, HEAD_SIZE, LAYERS = 1, 8, 2
LONG: Final = 65_536 * BLOCK + 1
_LONGEST: Final = LONG + 1024
_STEP_TOKENS: Final = 2048
_STEP_SECONDS: Final = 0.002
_RUNNING: Final = 8
_PROMPT: Final = 500
_LONG_SECONDS: Final = 1.0
_CONNECTORS: Final = {
    "ours": ("MooncakeStoreConnector", "mooncake_store_connector.v1"),
    "theirs": ("MooncakeStoreConnector", None),
    "control": ("NoConnector", "no_connector"),
}
_CALLS: Final = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "has_pending_push_work",
    "take_events",
    "get_kv_connector_stats",
)
_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HEADS * HEAD_SIZE,
    "intermediate_size": 32,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": 50_000,
    "max_position_embeddings": _LONGEST,
    "torch_dtype": "bfloat16",
}


class Stopwatch:
    """Times calls of one thread, in microseconds."""

    def __init__(self) -> None:
        # Time on a core, time ready without one, and how often: proc(5).
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self.stalls: dict[str, list[int]] = {}
        self.walls: list[int] = []

    def watch(self, target: Any) -> None:
        """Time all calls that are known."""
        for name in _CALLS:
            setattr(target, name, self._timed(name, getattr(target, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        stalls, walls = self.stalls.setdefault(name, []), self.walls

        def timed(*arguments: Any, **keywords: Any) -> Any:
            waited, begin = self._waited(), time.perf_counter_ns()
            try:
                return call(*arguments, **keywords)
            finally:
                wall = time.perf_counter_ns() - begin
                walls.append(wall // 1000)
                stalls.append(max(0, wall - (self._waited() - waited)) // 1000)

        return timed

    def _waited(self) -> int:
        return int(os.pread(self._file, 100, 0).split()[1])

    def clear(self) -> None:
        """Forget what was timed so far."""
        self.walls.clear()
        for one in self.stalls.values():
            one.clear()


class Arm:
    """An engine without a model."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._stopwatch = Stopwatch()

    def prepare(self, blocks: int) -> None:
        """Make scheduler and worker with caches of so many blocks."""
        self._config = _configure(*_CONNECTORS[self._kind])
        self._config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16)
        names = [f"layer{index}" for index in range(LAYERS)]
        caches_config = KVCacheConfig(blocks, [], [KVCacheGroupSpec(names, spec)])
        unit, hash_tokens = resolve_kv_cache_block_sizes(caches_config, self._config)
        hash_of = get_hash_fn_by_name(self._config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_of)
        self._hasher = get_request_block_hasher(hash_tokens, hash_of)
        with set_current_vllm_config(self._config):
            init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp(prefix='group-')}/init", 0, "gloo")
            initialize_model_parallel()
            self._worker = KVConnectorFactory.create_connector(self._config, KVConnectorRole.WORKER, caches_config)
            shape = (blocks, HEADS, BLOCK, 2 * HEAD_SIZE)
            # Kept: a connector may know no more of them than where they are.
            self._caches = {name: torch.zeros(shape, dtype=torch.bfloat16) for name in names}
            self._worker.register_kv_caches(self._caches)
            self._scheduler = Scheduler(
                self._config,
                caches_config,
                StructuredOutputManager(self._config),
                block_size=unit,
                hash_block_size=hash_tokens,
                log_stats=True,
            )
        kv_transfer_state._KV_CONNECTOR_AGENT = self._worker
        self._stopwatch.watch(self._scheduler.connector)
        self._draw = random.Random(os.getpid())
        self._numbers = itertools.count()
        self._known = [self._tokens(_PROMPT) for _ in range(4)]

    def usable(self) -> bool:
        """Whether both sides of ours can use the store; the others are ready when they are made."""
        self._step()
        if self._kind != "ours":
            return True
        return bool(self._scheduler.connector._scheduler._state.is_usable and self._worker._worker._is_usable)

    def warm(self) -> None:
        """Store what half of all prompts will find."""
        for tokens in self._known:
            self._add(tokens)
        deadline = time.monotonic() + 60
        while self._scheduler.has_requests() and time.monotonic() < deadline:
            self._step()
        # As vLLM does once its engine has started.
        gc.collect()
        gc.freeze()
        self._stopwatch.clear()

    def run(self, seconds: float, is_long: bool) -> dict[str, Any]:
        """Steps for so long, with prompts all the time. Stalls of each kind of call and times, in microseconds."""
        long_ones = self._long_ones(seconds) if is_long else iter(())
        end, next_long = time.monotonic() + seconds, time.monotonic()
        died = ""
        try:
            while (now := time.monotonic()) < end:
                if is_long and now >= next_long and (one := next(long_ones, None)) is not None:
                    self._scheduler.finish_requests("long", RequestStatus.FINISHED_ABORTED)
                    self._scheduler.add_request(one)
                    next_long = now + _LONG_SECONDS
                while len(self._scheduler.requests) < _RUNNING:
                    self._add(self._draw.choice(self._known) if self._draw.random() < 0.5 else self._tokens(_PROMPT))
                self._step()
        except Exception as error:
            died = f"{type(error).__name__}: {error}"
        stalls = {name: list(found) for name, found in self._stopwatch.stalls.items()}
        return {"stalls": stalls, "walls": list(self._stopwatch.walls), "died": died}

    def _long_ones(self, seconds: float) -> Iterator[Request]:
        """Requests of 65,536 blocks, made beforehand: their hashes are not the connector's work."""
        count = int(seconds / _LONG_SECONDS)
        return iter([self._request("long", self._tokens(LONG)) for _ in range(count)])

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = np.random.default_rng(self._draw.randrange(1 << 40)).integers(0, 50_000, count).tolist()
        return tokens

    def _request(self, name: str, tokens: list[int]) -> Request:
        sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        return Request(name, tokens, sampling, None, block_hasher=self._hasher)

    def _add(self, tokens: list[int]) -> None:
        self._scheduler.add_request(self._request(f"request-{next(self._numbers)}", tokens))

    def _step(self) -> None:
        """One step, in the order of vLLM's runner for CPUs."""
        output = self._scheduler.schedule()
        if output.total_num_scheduled_tokens:
            with set_forward_context(None, self._config):
                hooks = KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(output)
                with hooks as connector_output:
                    time.sleep(_STEP_SECONDS)
                    result = self._sample(output)
            result.kv_connector_output = connector_output
        else:
            time.sleep(_STEP_SECONDS / 2)
            result = KVConnectorModelRunnerMixin.kv_connector_no_forward(output, self._config)
        self._scheduler.update_from_output(output, result)
        self._scheduler.has_requests()

    def _sample(self, output: Any) -> ModelRunnerOutput:
        """One token for each request that has computed all that it has. It was counted as computed when scheduled."""
        names = list(output.num_scheduled_tokens)
        requests = self._scheduler.requests
        ready = [requests[name].num_computed_tokens >= requests[name].num_tokens for name in names]
        sampled = [[7] if is_ready else [] for is_ready in ready]
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)


def _configure(connector: str, module: str | None) -> Any:
    """What `vllm serve` would make of its arguments, for a model that nobody loads."""
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    (folder / "config.json").write_text(json.dumps(_MODEL))
    transfer = KVTransferConfig(
        kv_connector=connector,
        kv_connector_module_path=module,
        kv_role="kv_both",
        engine_id=str(os.getpid()),
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"cache_prefix": "stall"},
    )
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=_LONGEST,
        block_size=BLOCK,
        max_num_seqs=2 * _RUNNING,
        max_num_batched_tokens=_STEP_TOKENS,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
        kv_transfer_config=transfer,
        disable_hybrid_kv_cache_manager=False,
    )
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = False
    return config


if __name__ == "__main__":
    serve(Arm)
