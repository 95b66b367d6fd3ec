"""Tells an engine's breaker how a request ended, and the log and the metrics when that opened or closed it."""

import logging
import time

from disagg_router.breaker import Permit
from disagg_router.engines import Engine
from disagg_router.metrics import Metrics
from disagg_router.upstream import Outcome

log = logging.getLogger(__name__)

_GOOD = frozenset({Outcome.OK, Outcome.REJECTED})
_LOST = frozenset({Outcome.UNREACHABLE, Outcome.HUNG})


def judge(engine: Engine, permit: Permit, outcome: Outcome, metrics: Metrics) -> None:
    """Counts `outcome` for or against the engine. A refusal of a bad request speaks for it."""
    now, breaker = time.monotonic(), engine.breaker
    if outcome in _GOOD:
        if breaker.succeed(permit):
            log.warning("breaker closed: %s %s answered its trial request", engine.role, engine.url)
        return
    lost, late = outcome in _LOST, outcome is Outcome.TIMEOUT
    if breaker.lose(now) if lost else breaker.fail(permit, now, at_once=late):
        metrics.breaker_opened.labels(engine.role, outcome).inc()
        log.warning("breaker opened: %s %s (%s)", engine.role, engine.url, outcome)
