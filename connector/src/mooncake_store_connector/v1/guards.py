"""What keeps faults of vLLM's own store connector from stopping an engine. Each cure names the fault.

They hold on to names inside vLLM's connector. Where one is missing, that cure is left out with a line in the log: vLLM
has changed there, and the fault may be gone.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import mooncake.store
import zmq  # type: ignore[import-not-found,unused-ignore]  # comes with vLLM

from mooncake_store_connector.joining import JoiningStore
from mooncake_store_connector.outage import Outage

logger = logging.getLogger("vllm.mooncake_store_connector")

HOSTNAME_ENV: Final = "MOONCAKE_REQUESTER_LOCAL_HOSTNAME"


@contextmanager
def joining_store(namespace: str) -> Iterator[None]:
    """While this is open, vLLM's worker is given a store client that may join late and go away.

    Cures: setup without a master blocks the engine and then ends it; each call to a dead master takes seconds.
    """
    real = mooncake.store.MooncakeDistributedStore
    mooncake.store.MooncakeDistributedStore = lambda: JoiningStore(real, namespace)
    try:
        yield
    finally:
        mooncake.store.MooncakeDistributedStore = real


def use_pod_address(local_hostname: object) -> None:
    """Register under the config file's `local_hostname`: vLLM's connector reads an environment variable instead."""
    if isinstance(local_hostname, str) and local_hostname:
        os.environ.setdefault(HOSTNAME_ENV, local_hostname)


def guard_lookup_server(worker: Any, miss: Any) -> None:
    """Cures: an exception in a lookup ends the server's thread, and the scheduler waits for it for ever."""
    lookup = getattr(worker, "lookup", None)
    if lookup is None:
        _left_out("lookup")
        return

    @functools.wraps(lookup)
    def guarded(*args: Any, **keywords: Any) -> Any:
        try:
            return lookup(*args, **keywords)
        except Exception:
            logger.exception("A lookup failed; the prompt counts as not stored")
            return miss

    worker.lookup = guarded


def guard_loads(worker: Any) -> None:
    """Cures: an exception before a load's transfer leaves the request waiting for ever."""
    for thread in getattr(worker, "kv_recv_threads", ()):
        if hasattr(thread, "_handle_request") and hasattr(thread, "_report_load_error"):
            thread._handle_request = _guarded_load(thread, thread._handle_request)
        else:
            _left_out("_handle_request")


def _guarded_load(thread: Any, handle: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(handle)
    def guarded(request: Any) -> None:
        try:
            handle(request)
        except Exception:
            logger.exception("Loading KV for %s failed; it is computed instead", request.req_id)
            kept = request.load_spec.vllm_cached_tokens // thread.block_size
            thread._report_load_error(request.req_id, [block for group in request.block_ids for block in group[kept:]])
            thread.set_finished_request(request.req_id)
            thread.request_queue.task_done()

    return guarded


def forbid_split_loads(worker: Any) -> None:
    """Cures: with tensor parallelism, a load in several parts that fails in one reports blocks of that part alone.

    Blocks of later parts then count as loaded. Without a staging budget a load is one part.
    """
    if getattr(worker, "tp_size", 1) > 1 and getattr(worker, "disk_offload_buffer_budget_bytes", None) is not None:
        logger.warning("Loads are not split by the disk tier's staging budget; a load too large for it is computed")
        worker.disk_offload_buffer_budget_bytes = None


def bound_lookups(client: Any, timeout_ms: int, outage: Outage) -> None:
    """Cures: the scheduler waits for a lookup without limit. A late answer is dropped, and `outage` told.

    The socket may then send again, and tells a late answer from the one to the next question.
    """
    ask, sock = getattr(client, "_lookup", None), getattr(client, "socket", None)
    if ask is None or sock is None:
        _left_out("_lookup")
        return
    sock.setsockopt(zmq.REQ_RELAXED, 1)
    sock.setsockopt(zmq.REQ_CORRELATE, 1)
    sock.setsockopt(zmq.RCVTIMEO, timeout_ms)
    sock.setsockopt(zmq.SNDTIMEO, timeout_ms)

    @functools.wraps(ask)
    def bounded(*args: Any, **keywords: Any) -> Any:
        try:
            answer = ask(*args, **keywords)
        except zmq.Again as error:
            outage.failed(time.monotonic())
            msg = f"no answer within {timeout_ms} ms"
            raise TimeoutError(msg) from error
        outage.answered()
        return answer

    client._lookup = bounded


def _left_out(name: str) -> None:
    logger.warning("vLLM's store connector has no %s any more; its guard is left out", name)
