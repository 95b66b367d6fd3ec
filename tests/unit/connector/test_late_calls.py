"""Which calls of the store count as unanswered: a thread that had no core to run on says nothing of the store."""

import threading
import time

import pytest
from mooncake_store_connector.agent import link
from mooncake_store_connector.agent.threads import starved_seconds


@pytest.mark.parametrize(
    ("taken", "starved", "late"),
    [
        (0.9, 0.0, False),
        (1.1, 0.0, True),
        (3.0, 2.5, False),  # half a second of it was the store's
        (3.0, 1.5, True),
        (9.0, 8.9, True),  # no patience without end: the caller's request waits too
    ],
)
def test_time_without_a_core_is_not_the_stores(
    monkeypatch: pytest.MonkeyPatch, taken: float, starved: float, late: bool
) -> None:
    monkeypatch.setattr(link, "starved_seconds", lambda _: 100.0 + starved)
    call = link._Call("batch_is_exist", started=50.0, allowed=1.0, thread=1, starved=100.0)
    assert call.is_late(50.0 + taken) is late


def test_the_kernel_tells_how_long_a_thread_waited() -> None:
    """Where it does not (some sandboxes), 0 is right too: then time alone decides."""
    before = starved_seconds(threading.get_native_id())
    time.sleep(0.01)
    assert 0.0 <= before <= starved_seconds(threading.get_native_id())


def test_a_thread_that_is_gone_waits_for_nothing() -> None:
    assert starved_seconds(2**30) == 0.0
