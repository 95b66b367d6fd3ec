"""vLLM's own store connector with a hand-off: decode waits, for a bounded time, for what prefill has promised.

What it adds to the class it stands on:
- prefill tells what will be stored, decode waits for exactly that up to a deadline (`handoff_timeout_ms`);
- lookups never block the scheduler (`lookup_async`);
- a request whose load failed is computed, not looked up again and again;
- failed loads are recomputed, whatever the configuration says;
- it refuses to start when block hashes differ between processes.

What it does not cure: an engine without a master waits for it in the store client's own setup.
"""

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import (
    MooncakeStoreConnector as UpstreamConnector,
)

from mooncake_store_connector.handoff import build_hint, build_params, is_asked_for, read_hint, tokens_to_wait_for
from mooncake_store_connector.v1.waits import Waits

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = logging.getLogger(f"vllm.{__name__}")

DEFAULT_HANDOFF_TIMEOUT_MS = 3000


def check_hashes(algorithm: str, seed: str | None) -> None:
    """Raise ValueError unless two processes give the same blocks the same hashes."""
    if seed == "random" or (algorithm.startswith("xxhash") and seed is None):
        raise ValueError(
            "MooncakeStoreConnector: block hashes would differ between processes "
            f"(prefix_caching_hash_algo {algorithm}, PYTHONHASHSEED {seed}); set PYTHONHASHSEED to one number on every "
            "engine of this store"
        )


class MooncakeStoreConnector(UpstreamConnector):  # type: ignore[misc]  # vLLM has no type information here
    """KV through a Mooncake store, handed from prefill to decode."""

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig | None" = None
    ) -> None:
        transfer = vllm_config.kv_transfer_config
        extra = transfer.kv_connector_extra_config
        extra.setdefault("lookup_async", True)
        check_hashes(str(vllm_config.cache_config.prefix_caching_hash_algo), os.environ.get("PYTHONHASHSEED"))
        if role == KVConnectorRole.SCHEDULER and transfer.kv_load_failure_policy != "recompute":
            # The scheduler reads it right after this constructor.
            logger.info("kv_load_failure_policy is set to recompute: a failed load must not fail its request")
            transfer.kv_load_failure_policy = "recompute"
        super().__init__(vllm_config, role, kv_cache_config)
        self._namespace = str(extra.get("cache_prefix", ""))
        self._waits = Waits(int(extra.get("handoff_timeout_ms", DEFAULT_HANDOFF_TIMEOUT_MS)) / 1000)
        if role == KVConnectorRole.SCHEDULER:
            logger.info("Mooncake store: namespace %r, hand-off wait %.1f s", self._namespace, self._waits.timeout)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that the store has beyond `num_computed_tokens`; None to be asked again."""
        name, now = request.request_id, time.monotonic()
        if self._waits.is_done(name):
            return 0, False
        wanted = self._tokens_to_wait_for(request)
        if wanted > num_computed_tokens:
            self._waits.begin(name, wanted, now)
        if not self._waits.may_look(name, now):
            return None, False
        found, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if found is None:
            return None, False
        if self._waits.go_on(name, num_computed_tokens + found, now):
            self.connector_scheduler.load_specs.pop(name, None)
            return None, False
        return found, is_async

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Blocks are there: the request has had its offer."""
        self._waits.settle(request.request_id)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> Any:
        """Forget requests that are gone, then what the base class does."""
        for name in scheduler_output.finished_req_ids:
            self._waits.forget(name)
        return super().build_connector_meta(scheduler_output)

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Tell a request that asked for it what its KV will be stored under."""
        delay, params = super().request_finished_all_groups(request, block_ids)
        if self.kv_role == "kv_consumer" or not is_asked_for(request.kv_transfer_params):
            return delay, params
        scheduler = self.connector_scheduler
        hint = build_hint(
            self._namespace,
            request.num_prompt_tokens,
            scheduler._block_size,
            scheduler._hash_block_size,
            request.block_hashes,
        )
        return delay, {**(params or {}), **(build_params(hint) if hint else {})} or None

    def _tokens_to_wait_for(self, request: "Request") -> int:
        scheduler = self.connector_scheduler
        return tokens_to_wait_for(
            read_hint(request.kv_transfer_params),
            self._namespace,
            request.num_tokens,
            scheduler._block_size,
            scheduler._hash_block_size,
            request.block_hashes,
        )
