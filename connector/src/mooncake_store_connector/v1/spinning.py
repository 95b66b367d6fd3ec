"""Engines on CPUs share their cores with what they wait for: their workers rest where they would spin.

A worker of vLLM spins for a second after each step, yielding the processor over and over. On a GPU's host that buys
microseconds. On a machine whose cores compute, it takes a core from the other role, from the store agent, and, since
Linux 6.18 counts every yield as time used, from the worker's own next step: 80 tokens took 2 s instead of 0.1.
"""

import logging
import time
from types import ModuleType
from typing import Final

logger = logging.getLogger("vllm.mooncake_store_connector")

_REST_SECONDS: Final = 0.0001


def rest_instead_of_spinning(module: ModuleType) -> bool:
    """Let vLLM's message queue, `shm_broadcast`, sleep where it yields. False if it has no such place any more."""
    if not callable(getattr(module, "sched_yield", None)):
        logger.info("vLLM's message queue yields no more; it is left as it is")
        return False
    module.sched_yield = _rest  # type: ignore[attr-defined]
    return True


def _rest() -> None:
    time.sleep(_REST_SECONDS)
