"""`MooncakeStoreConnector`: vLLM's interface, and nothing else. The scheduler's and the worker's sides do the work."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import vllm.envs
from vllm import __version__ as vllm_version
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

from mooncake_store_connector.client import CONFIG_ENV, read_config
from mooncake_store_connector.descriptor import Descriptor, write_descriptor
from mooncake_store_connector.hashing import describe_seed, find_hash_problem
from mooncake_store_connector.namespace import derive_namespace, describe_kv
from mooncake_store_connector.problems import ConfigError, Problem
from mooncake_store_connector.v1.layout import UnfitLayoutError, lay_out
from mooncake_store_connector.v1.model import describe_groups, shape_of, why_no_recovery, why_off
from mooncake_store_connector.v1.plans import StepPlan
from mooncake_store_connector.v1.scheduler import StoreScheduler
from mooncake_store_connector.v1.settings import own_options, read_settings
from mooncake_store_connector.v1.spinning import rest_instead_of_spinning
from mooncake_store_connector.v1.stats import StorePromMetrics, StoreStats
from mooncake_store_connector.v1.wording import VllmWords, is_wanted
from mooncake_store_connector.v1.worker import Rank, StoreWorker

logger = logging.getLogger("vllm.mooncake_store_connector")

_POLICY: Final = "recompute"


class StoreMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """A step's plan, on its way to the workers."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class StoreWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What workers had no room for in a step, on its way back."""

    def __init__(self, dropped: dict[str, int]) -> None:
        self.dropped = dropped

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Of all ranks: what one has not is of no use to the others."""
        both = [(name, tokens) for one in (self, other) for name, tokens in one.dropped.items()]
        return StoreWorkerMetadata({name: min(of for own, of in both if own == name) for name, _ in both})


class MooncakeStoreConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Loaded by vLLM, once in the scheduler's process and once in each worker's."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._config = vllm_config
        self._caches_config = kv_cache_config
        self._store_role = str(transfer.kv_role)
        self._settings = read_settings(own_options(transfer.kv_connector_extra_config))
        self._check(vllm_config)
        self._agent = f"{transfer.engine_id}-{vllm_config.parallel_config.data_parallel_index}"
        self._scheduler: StoreScheduler | None = None
        self._worker: StoreWorker | None = None
        reason = why_off(vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self._start_scheduler(transfer, reason)
        elif reason:
            logger.warning("This engine shares no KV: %s", reason)
        self._is_off = bool(reason)

    def _check(self, vllm_config: Any) -> None:
        algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
        problem = find_hash_problem(algorithm, os.environ.get("PYTHONHASHSEED"))
        if problem is None and not os.environ.get(CONFIG_ENV):
            problem = Problem(CONFIG_ENV, "not set", "set it to the path of mooncake_config.json")
        if problem is not None:
            raise ConfigError([problem])
        self._store_config = read_config(Path(os.environ[CONFIG_ENV]))

    def _start_scheduler(self, transfer: Any, reason: str) -> None:
        for note in self._settings.notes:
            logger.warning("%s", note)
        if not self._settings.cache_prefix:
            logger.warning("cache_prefix is not set: every engine of this model that uses the store shares its KV")
        _recompute_on_failure(transfer)
        if not reason:
            shape = shape_of(self._config, self._caches_config)
            words = VllmWords(self._caches_config) if is_wanted(self._config) else None
            self._scheduler = StoreScheduler(self._agent, shape, self._settings, self._store_role, words)

    # -- the scheduler's side -----------------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """It is a cache: what is not delivered is computed."""
        return False

    def on_new_request(self, request: Any) -> None:
        """Start looking for the prompt's KV."""
        if self._scheduler is not None:
            self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that lie proven in host memory; None to be asked again. Loads are never asynchronous: see `load`."""
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the copy of what was offered."""
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """The step's plan."""
        return StoreMetadata(self._scheduler.plan_step(scheduler_output) if self._scheduler is not None else StepPlan())

    def update_connector_output(self, connector_output: Any) -> None:
        """Hear of what workers had no room for. vLLM tells it after it has ended the requests of the same step."""
        metadata = connector_output.kv_connector_worker_meta
        if self._scheduler is not None and isinstance(metadata, StoreWorkerMetadata):
            self._scheduler.dropped(metadata.dropped)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Blocks are free at once. What is stored is told to whoever asked."""
        return False, self._scheduler.finished(request) if self._scheduler is not None else None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`, for models with several groups."""
        return self.request_finished(request, [])

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:
        """All of it came from other machines' memory, through this one's."""
        from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: PLC0415 - newer vLLM only

        return {CacheHitSource.P2P: num_external_tokens}

    def take_events(self) -> Sequence[Any]:
        """KV events of what the store took of this engine and what it lost, for vLLM to publish beside its own."""
        return self._scheduler.take_events() if self._scheduler is not None else ()

    def has_pending_push_work(self) -> bool:
        """Whether vLLM shall take steps without requests: else the last prompt's events wait for the next one."""
        return self._scheduler is not None and self._scheduler.is_expecting_events

    def reset_cache(self) -> bool | None:
        """Nothing stored so far may be used again."""
        return self._scheduler.reset() if self._scheduler is not None else None

    # -- the worker's side --------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Learn where the caches are, and start the agent."""
        if self._is_off:
            return
        try:
            groups = [group.layer_names for group in self._caches_config.kv_cache_groups]
            layouts = lay_out(kv_caches, groups, self._caches_config.num_blocks)
        except UnfitLayoutError as error:
            logger.warning("This engine shares no KV: %s", error)
            return
        if all(row.device.type == "cpu" for layout in layouts for row in layout.rows):
            rest_instead_of_spinning(shm_broadcast)
        payloads = [layout.payload for layout in layouts]
        descriptor = self._descriptor(kv_caches, payloads)
        text = write_descriptor(descriptor)
        self._worker = StoreWorker(
            self._agent,
            descriptor.namespace,
            text,
            _rank(self._config.parallel_config),
            shape_of(self._config, self._caches_config),
            layouts,
            self._store_config.local_buffer_size,
            self._settings,
            self._store_role,
        )
        logger.info(
            "KV goes to the store at %s over %s in the namespace %s: %s",
            self._store_config.master,
            self._store_config.protocol,
            descriptor.namespace,
            text or descriptor.facts,
        )

    def _descriptor(self, kv_caches: dict[str, Any], payloads: list[int]) -> Descriptor:
        layout = getattr(vllm.envs, "VLLM_KV_CACHE_LAYOUT", None)
        facts = {
            **describe_kv(self._config, {}, layout, vllm_version),
            **describe_groups(self._config, self._caches_config, kv_caches, payloads),
            "hash_seed": describe_seed(os.environ.get("PYTHONHASHSEED")),
        }
        prefix = self._settings.cache_prefix
        return Descriptor(derive_namespace(prefix, facts), prefix, facts)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy what is proven in host memory into the blocks that this step reads."""
        metadata = self._get_connector_metadata()
        if self._worker is not None and isinstance(metadata, StoreMetadata) and metadata.plan.loads:
            self._worker.load(metadata.plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything was copied before the step began."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are handed over whole, in `wait_for_save`."""

    def wait_for_save(self) -> None:
        """Hand over the blocks that this step filled."""
        metadata = self._get_connector_metadata()
        if self._worker is not None and isinstance(metadata, StoreMetadata):
            self._worker.save(metadata.plan)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that this step should have loaded and has not; vLLM computes them. Raises where it would not."""
        failed = self._worker.take_failed() if self._worker is not None else set()
        if failed and (why := why_no_recovery(self._config, self._caches_config)):
            # An engine that ends and starts again gives no wrong token.
            raise RuntimeError(f"KV that was offered is gone, and vLLM cannot compute it here: {why}")
        return failed

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What this step had no room for."""
        dropped = self._worker.take_dropped() if self._worker is not None else {}
        return StoreWorkerMetadata(dropped) if dropped else None

    def get_kv_connector_stats(self) -> StoreStats | None:
        """What was counted since the last call, on either side."""
        side = self._scheduler or self._worker
        counts = side.take_counts() if side is not None else {}
        return StoreStats(counts) if counts else None

    def shutdown(self) -> None:
        """End both sides; the worker's ends the agent."""
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
        self._scheduler = self._worker = None

    # -- metrics ------------------------------------------------------------------------------------------------------

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StoreStats:
        """Statistics from what was sent between processes."""
        return StoreStats(dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> StorePromMetrics:
        """The counters for Prometheus."""
        return StorePromMetrics(*arguments)


def _rank(parallel: Any) -> Rank:
    tensor, pipeline = get_tensor_model_parallel_rank(), get_pp_group().rank_in_group
    count = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return Rank(f"tp{tensor}pp{pipeline}", count, starts_agent=tensor == 0 and pipeline == 0)


def _recompute_on_failure(transfer: Any) -> None:
    """vLLM reads the policy right after the scheduler's side is made. Ours never fails a load; others might."""
    if getattr(transfer, "kv_load_failure_policy", _POLICY) != _POLICY:
        logger.warning("kv_load_failure_policy is set to recompute: a load that fails must not fail a request")
        transfer.kv_load_failure_policy = _POLICY
