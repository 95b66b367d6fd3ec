"""`MooncakeStoreConnector`, for now vLLM's own with what serving split into prefill and decode needs.

The end state is a connector of our own under the same name: packed transfers, proof of every block loaded, lookups
beside the scheduler. Until then this class adds to vLLM's:

- the hand-off: prefill says what it stores, decode waits for exactly that, up to a deadline;
- lookups beside the scheduler (`lookup_async`), bounded, and none while the store does not answer;
- a namespace that names what the bytes are, and a refusal of block hashes that cannot be shared;
- no second load for a request whose load failed, and recomputation instead of failed requests;
- a store that may come late, go away or hang (`guards`).
"""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Final

import vllm.envs
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import (
    MooncakeStoreConnector as _UpstreamConnector,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import MooncakeLookupResult
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from mooncake_store_connector.handoff import Hint, build_hint, build_params, is_asked_for, read_hint, tokens_to_wait_for
from mooncake_store_connector.hashing import find_hash_problem
from mooncake_store_connector.namespace import derive_namespace, describe_kv
from mooncake_store_connector.outage import Outage
from mooncake_store_connector.problems import ConfigError
from mooncake_store_connector.v1 import guards
from mooncake_store_connector.v1.settings import Settings, read_settings
from mooncake_store_connector.waits import Waits

logger = logging.getLogger("vllm.mooncake_store_connector")

_POLICY: Final = "recompute"


class MooncakeStoreConnector(_UpstreamConnector):  # type: ignore[misc]
    """Loaded by vLLM, once in the scheduler's process and once in each worker's."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        transfer = vllm_config.kv_transfer_config
        self._settings: Settings = read_settings(transfer.kv_connector_extra_config)
        transfer.kv_connector_extra_config.setdefault("lookup_async", True)
        _check_hashes(vllm_config)
        self._namespace = _enter_namespace(vllm_config, self._settings)
        if role == KVConnectorRole.SCHEDULER:
            _recompute_on_failure(transfer)
            super().__init__(vllm_config, role, kv_cache_config)
            self._init_scheduler(vllm_config, kv_cache_config)
        else:
            guards.use_pod_address(_read_local_hostname())
            with guards.joining_store(self._namespace):
                super().__init__(vllm_config, role, kv_cache_config)
            guards.guard_lookup_server(self.connector_worker, MooncakeLookupResult(0))
            guards.forbid_split_loads(self.connector_worker)

    def _init_scheduler(self, vllm_config: Any, kv_cache_config: Any) -> None:
        self._block_size, self._hash_block_size = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        self._waits = Waits(self._settings.handoff_timeout_ms / 1000)
        self._told_mismatch = False
        self._outage = Outage()
        guards.bound_lookups(self.connector_scheduler.client, self._settings.lookup_timeout_ms, self._outage)

    # -- scheduler ----------------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that the store has beyond those computed; None to be asked again.

        A request is offered blocks once. If it comes back its load failed, and a second look would find the same.
        """
        name, now = request.request_id, time.monotonic()
        if self._waits.is_done(name) or self._outage.is_open(now):
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
        return found, bool(is_async and found)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks are there: the request has had its offer."""
        self._waits.settle(request.request_id)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Forget requests that are gone, then what the base class does."""
        for name in scheduler_output.finished_req_ids:
            self._waits.forget(name)
        return super().build_connector_meta(scheduler_output)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Tell a request that asked for it what its KV is stored under."""
        delay, params = super().request_finished_all_groups(request, block_ids)
        hint = self._build_hint(request)
        return delay, {**(params or {}), **build_params(hint)} if hint else params

    def _build_hint(self, request: Any) -> Hint | None:
        """What is being stored of a request that asked and ran to its end; None when there is nothing to wait for."""
        ended = getattr(request.status, "name", "") in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
        params = request.kv_transfer_params
        # What carries a hint asks for none: it is decode's leg, and its answer goes to a client.
        if self.kv_role == "kv_consumer" or not ended or not is_asked_for(params) or read_hint(params):
            return None
        tokens = min(request.num_prompt_tokens, request.num_computed_tokens)
        return build_hint(self._namespace, tokens, self._block_size, self._hash_block_size, request.block_hashes)

    def _tokens_to_wait_for(self, request: Any) -> int:
        hint = read_hint(request.kv_transfer_params)
        sizes = (self._block_size, self._hash_block_size)
        wanted = tokens_to_wait_for(hint, self._namespace, request.num_tokens, *sizes, request.block_hashes)
        if hint and not wanted and hint.tokens < request.num_tokens and not self._told_mismatch:
            self._told_mismatch = True
            logger.warning(
                "Prefill promised KV that this engine would not recognise (namespace %s there, %s here). If the "
                "namespaces are equal, PYTHONHASHSEED differs. Prompts are computed here. Not told again",
                hint.namespace,
                self._namespace,
            )
        return wanted

    # -- worker -------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: Any) -> None:
        """As vLLM's, which starts the transfer threads here."""
        super().register_kv_caches(kv_caches)
        guards.guard_loads(self.connector_worker)


def _check_hashes(vllm_config: Any) -> None:
    problem = find_hash_problem(
        str(vllm_config.cache_config.prefix_caching_hash_algo), os.environ.get("PYTHONHASHSEED")
    )
    if problem:
        raise ConfigError([problem])


def _enter_namespace(vllm_config: Any, settings: Settings) -> str:
    """Put the namespace where vLLM's connector takes it from, and return it.

    Both roles may see the same config object, so the prefix is kept beside it and not extended twice.
    """
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    prefix = str(extra.setdefault("configured_cache_prefix", settings.cache_prefix))
    facts = describe_kv(vllm_config, extra, getattr(vllm.envs, "VLLM_KV_CACHE_LAYOUT", None), vllm_version)
    namespace = derive_namespace(prefix, facts)
    extra["cache_prefix"] = namespace
    if not prefix:
        logger.warning("cache_prefix is not set: models whose paths end alike share KV; set it to tell them apart")
    logger.info("KV is shared in the namespace %s: %s", namespace, facts)
    return namespace


def _recompute_on_failure(transfer: Any) -> None:
    if getattr(transfer, "kv_load_failure_policy", _POLICY) != _POLICY:
        logger.warning("kv_load_failure_policy is set to recompute: a load that fails must not fail a request")
        transfer.kv_load_failure_policy = _POLICY


def _read_local_hostname() -> object:
    path = os.environ.get("MOONCAKE_CONFIG_PATH")
    try:
        return json.loads(Path(path).read_text()).get("local_hostname") if path else None
    except (OSError, ValueError, AttributeError):
        return None  # vLLM's own reader tells what is wrong with the file
