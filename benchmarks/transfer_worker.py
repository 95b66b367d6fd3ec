"""One arm of the transfer benchmark in a process of its own: a connector with its caches.

Both connectors are vLLM's own objects on the same configuration: what their classes do with blocks is done here by
their classes. Caches hold twice the blocks that are moved, so that what is loaded can be compared with what was saved;
block 0 is vLLM's null block. Times end when all is stored, or when all bytes lie in the caches.
"""

import json
import os
import select
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

import torch
from connector.v0.worker import serve
from mooncake_store_connector.v1.connector import StoreMetadata
from mooncake_store_connector.v1.model import shape_of
from mooncake_store_connector.v1.plans import SavePlan, StepPlan
from mooncake_store_connector.v1.scheduler import StoreScheduler
from mooncake_store_connector.v1.settings import read_settings
from transfer_raw import DTYPE, HEAD_SIZE, HEADS, LAYERS, fresh_hashes
from vllm.config import KVTransferConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import LoadSpec, ReqMeta
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
_PATIENCE: Final = 60.0


class Mover(Protocol):
    """A connector that stores blocks 1 to n under hashes, and loads hashes into the n blocks after them."""

    def is_usable(self) -> bool:
        """Whether it has joined the store."""

    def save(self, hashes: list[bytes]) -> float:
        """Seconds."""

    def load(self, hashes: list[bytes]) -> float:
        """Seconds, without the lookup."""


class ConnectorArm:
    """A connector, ours or vLLM's own."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def prepare(self, block: int, count: int) -> None:
        """Make caches of twice `count` blocks of `block` tokens, and a connector on them."""
        blocks = 1 + 2 * count
        config, caches_config = configure(self._kind, block, blocks)
        names = caches_config.kv_cache_groups[0].layer_names
        shape = (blocks, HEADS, block, 2 * HEAD_SIZE)
        self._caches = {name: torch.randn(shape, dtype=DTYPE) for name in names}
        self._count = count
        with set_current_vllm_config(config):
            _make_groups()
            connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, caches_config)
            connector.register_kv_caches(self._caches)
        mover = OursMover if self._kind == "ours" else TheirsMover
        self._mover: Mover = mover(connector, config, caches_config, count)

    def usable(self) -> bool:
        """Whether it has joined the store."""
        return self._mover.is_usable()

    def time_save(self, seed: int) -> float:
        """Save under new keys; seconds."""
        return self._mover.save(fresh_hashes(seed, self._count))

    def time_load(self, seed: int) -> float:
        """Load what was saved; seconds. Fails if one byte is another, so that no miss is taken for a fast load."""
        for cache in self._caches.values():
            cache[1 + self._count :] = 0
        seconds = self._mover.load(fresh_hashes(seed, self._count))
        for name, cache in self._caches.items():
            saved, loaded = cache[1:].view(torch.int16).chunk(2)
            assert torch.equal(saved, loaded), f"{name} is not what was saved"
        return seconds


class OursMover:
    """Our connector, with both its sides and its agent."""

    def __init__(self, connector: Any, config: Any, caches_config: Any, count: int) -> None:
        self._connector = connector
        self._worker = connector._worker
        self._shape = shape_of(config, caches_config)
        settings = read_settings({"cache_prefix": "transfer", "wait_ms": int(1000 * _PATIENCE)})
        self._scheduler = StoreScheduler(connector._agent, self._shape, settings, "kv_both")
        self._count = count

    def is_usable(self) -> bool:
        """Whether both its sides can use the store."""
        self._scheduler._poll()
        self._worker.poll()
        return bool(self._scheduler._state.is_usable and self._worker._is_usable)

    def save(self, hashes: list[bytes]) -> float:
        """From the end of a step to the last block that the agent has stored."""
        plan = StepPlan(saves=[SavePlan("save", 0, [0] * self._count, list(range(1, 1 + self._count)), hashes)])
        begin = time.perf_counter()
        self._step(plan, self._connector.wait_for_save)
        assert not self._worker.take_dropped()
        _until(self._worker._connection.channel, self._has_saved)
        return time.perf_counter() - begin

    def load(self, hashes: list[bytes]) -> float:
        """From the scheduler's first wish to the copy in the caches."""
        tokens = self._count * self._shape.unit
        name = f"load-{hashes[0].hex()}"
        request = SimpleNamespace(
            request_id=name, num_tokens=tokens + 1, num_prompt_tokens=tokens + 1, block_hashes=hashes
        )
        request.kv_transfer_params = None
        side = self._scheduler
        side.on_new_request(request)
        _until(side._channel, lambda: self._hears(lambda: side._saving[name].stored == tokens))
        begin = time.perf_counter()
        offered = side.matched_tokens(request, 0)
        if offered is None:
            _until(side._channel, lambda: self._hears(lambda: side._prompts[name].ready is not None))
            offered = side.matched_tokens(request, 0)
        assert offered == tokens, f"{offered} of {tokens} tokens were offered"
        ids = list(range(1 + self._count, 1 + 2 * self._count))
        side.allocated(request, SimpleNamespace(get_block_ids=lambda: [ids]), offered)
        plan = side.plan_step(SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={}))
        self._step(plan, lambda: self._connector.start_load_kv(None))
        seconds = time.perf_counter() - begin
        side.finished(SimpleNamespace(**vars(request), num_computed_tokens=tokens, status=None))
        return seconds

    def _has_saved(self) -> bool:
        self._worker.poll()
        return not self._worker._connection.ring.used

    def _hears(self, check: Callable[[], bool]) -> bool:
        self._scheduler._poll()
        return check()

    def _step(self, plan: StepPlan, act: Callable[[], None]) -> None:

        self._connector.bind_connector_metadata(StoreMetadata(plan))
        act()
        self._connector.clear_connector_metadata()


class TheirsMover:
    """vLLM's own connector: its threads that send and receive, with the jobs that it would give them."""

    def __init__(self, connector: Any, config: Any, caches_config: Any, count: int) -> None:
        # It leaves the store when nobody holds it any more.
        self._connector = connector
        self._worker = connector.connector_worker
        self._tokens = count * caches_config.kv_cache_groups[0].kv_cache_spec.block_size
        self._count = count
        self._jobs = 0

    def is_usable(self) -> bool:
        """It has joined before it could be made."""
        return True

    def save(self, hashes: list[bytes]) -> float:
        """From its job for the sending thread to the job's end."""
        self._jobs += 1
        job = ReqMeta(
            f"save-{self._jobs}",
            self._tokens,
            (list(range(1, 1 + self._count)),),
            hashes,
            can_save=True,
            prefill_end_tokens=self._tokens,
            store_job_id=self._jobs,
        )
        thread = self._worker.kv_send_thread
        begin = time.perf_counter()
        thread.add_request(job)
        thread.request_queue.join()
        seconds = time.perf_counter() - begin
        thread.delete_finished_stored_request(job.req_id)
        return seconds

    def load(self, hashes: list[bytes]) -> float:
        """From its job for the receiving thread to the job's end."""
        wish = LoadSpec(0, self._tokens, can_load=True, token_len=self._tokens)
        ids = list(range(1 + self._count, 1 + 2 * self._count))
        job = ReqMeta("load", self._tokens, (ids,), hashes, load_spec=wish)
        begin = time.perf_counter()
        self._worker.recv_request_queue.put(job)
        self._worker.recv_request_queue.join()
        seconds = time.perf_counter() - begin
        assert not self._worker.get_block_ids_with_load_errors()
        return seconds


def configure(kind: str, block: int, blocks: int) -> tuple[Any, Any]:
    """What `vllm serve` would make of its arguments, for a model that nobody loads; and of its caches."""
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    (folder / "config.json").write_text(json.dumps(_MODEL))
    transfer = KVTransferConfig(
        kv_connector="MooncakeStoreConnector",
        kv_connector_module_path="mooncake_store_connector.v1" if kind == "ours" else None,
        kv_role="kv_both",
        engine_id=f"{os.getpid()}-{block}",
        kv_connector_extra_config={"cache_prefix": "transfer"},
    )
    arguments = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, max_model_len=8192, block_size=block, kv_transfer_config=transfer
    )
    config = arguments.create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=block, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=DTYPE)
    group = KVCacheGroupSpec([f"layer{index}" for index in range(LAYERS)], spec)
    return config, KVCacheConfig(blocks, [], [group])


def _make_groups() -> None:

    init = f"file://{tempfile.mkdtemp(prefix='group-')}/init"
    init_distributed_environment(1, 0, init, 0, "gloo")
    initialize_model_parallel()


def _until(channel: Any, check: Callable[[], bool]) -> None:
    """Wait on a channel until something is so."""
    deadline = time.monotonic() + _PATIENCE
    while not check():
        assert time.monotonic() < deadline, "the agent does not answer"
        select.select([channel], [], [], 1)


if __name__ == "__main__":
    serve(ConnectorArm)
