"""Field case C70's kind: prefill goes away under load and comes back. No request fails, and prefill is used again.

The engines are stand-ins; discovery is a real vllm-router on a real API server.
"""

import signal
from collections.abc import Callable

import pytest

from router.client import load
from router.fake_engine import Behaviour
from router.programs import eventually
from router.stack import Engine, Router, Stack

KIB = 1 << 10


@pytest.fixture(scope="module")
def prefill(stack: Stack) -> Engine:
    return stack.add_engine("prefill")


@pytest.fixture(scope="module")
def decodes(stack: Stack) -> list[Engine]:
    return [stack.add_engine("decode"), stack.add_engine("decode")]


@pytest.fixture(scope="module")
def router(stack: Stack, prefill: Engine, decodes: list[Engine]) -> Router:
    return stack.add_router()


def kill(prefill: Engine) -> None:
    prefill.end()


def start(prefill: Engine) -> None:
    prefill.start()


def stop(prefill: Engine) -> None:
    prefill.send(signal.SIGSTOP)


def go_on(prefill: Engine) -> None:
    prefill.send(signal.SIGCONT)


def turn_unready(prefill: Engine) -> None:
    prefill.show(ready=False)


def turn_ready(prefill: Engine) -> None:
    prefill.show()


def delete(prefill: Engine) -> None:
    prefill.hide()


def crash(prefill: Engine) -> None:
    prefill.behave(Behaviour(die_after=0))


def fail(prefill: Engine) -> None:
    prefill.behave(Behaviour(status=500))


def babble(prefill: Engine) -> None:
    prefill.behave(Behaviour(malformed=True))


def recover(prefill: Engine) -> None:
    prefill.behave()


Act = Callable[[Engine], None]
LOSSES = {
    "killed": (kill, start),
    "hung": (stop, go_on),
    "not-ready": (turn_unready, turn_ready),
    "scaled-to-zero": (delete, turn_ready),
    "crashing-midway": (crash, start),
    "answering-500": (fail, recover),
    "answering-rubbish": (babble, recover),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("size", [2 * KIB, KIB * KIB], ids=["2KB", "1MB"])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_no_request_fails_while_prefill_is_lost(
    stack: Stack, router: Router, prefill: Engine, loss: str, size: int, streamed: bool
) -> None:
    lose, restore = LOSSES[loss]
    with load(router.url, size=size, streamed=streamed) as seen:
        seen.more(10)
        used = router.metric("disagg_router_prefill_legs_total", outcome="ok")
        lose(prefill)
        eventually(lambda: router.usable("prefill") == 0, "prefill is left alone")
        alone = router.metric("disagg_router_decode_only_total", reason="prefill_no_engine")
        seen.more(20)
        assert router.metric("disagg_router_decode_only_total", reason="prefill_no_engine") >= alone + 10
        restore(prefill)
        stack.settle(router)
        back = router.metric("disagg_router_prefill_legs_total", outcome="ok")
        seen.more(20)
    assert seen.failures == []
    assert used >= 8, "prefill was not used before"
    assert router.metric("disagg_router_prefill_legs_total", outcome="ok") >= back + 10, "prefill is not used again"


def test_a_hang_is_paid_for_once(stack: Stack, router: Router, prefill: Engine) -> None:
    """Requests that come after the hang was seen do not wait for prefill at all."""
    prefill.send(signal.SIGSTOP)
    try:
        with load(router.url, size=100, streamed=False) as seen:
            eventually(lambda: router.usable("prefill") == 0, "the hang is seen")
            hung = router.metric("disagg_router_prefill_legs_total", outcome="hung")
            seen.more(4)
            met = router.metric("disagg_router_prefill_legs_total", outcome="hung")
            seen.more(50)
        assert seen.failures == []
        assert met - hung <= 4, "more requests than were in flight waited for a hung prefill"
        assert router.metric("disagg_router_prefill_legs_total", outcome="hung") == met
    finally:
        prefill.send(signal.SIGCONT)
    stack.settle(router)


def test_an_engine_that_answers_checks_but_never_requests(stack: Stack, prefill: Engine) -> None:
    """The deadline of the leg ends the wait; the breaker opens at once; a trial request finds the cure."""
    router = stack.add_router("--prefill-timeout=0.5", "--prefill-timeout-per-mib=0", "--breaker-max-cooldown=1")
    prefill.behave(Behaviour(stuck=True))
    with load(router.url, size=100, streamed=False) as seen:
        eventually(lambda: router.metric("disagg_router_breaker_opened_total", reason="timeout") >= 1, "it opens")
        seen.more(100)
        tried = router.metric("disagg_router_prefill_legs_total", outcome="timeout")
        assert tried <= 4 + 5, "only those in flight and single trials may wait"
        prefill.behave()
        stack.settle(router)
        seen.more(20)
    assert seen.failures == []
    assert router.metric("disagg_router_prefill_legs_total", outcome="ok") >= 10


def test_an_engine_with_a_long_queue_is_not_left_alone(stack: Stack, prefill: Engine) -> None:
    """Some wait in vain, and decode serves them. The others still go through prefill, which works as fast as it can."""
    router = stack.add_router("--prefill-timeout=4", "--prefill-timeout-per-mib=0")
    prefill.behave(Behaviour(serial=True, delay=0.4))
    with load(router.url, size=100, streamed=False, clients=20) as seen:
        eventually(
            lambda: router.metric("disagg_router_prefill_legs_total", outcome="timeout") >= 4, "some wait in vain"
        )
        before = router.metric("disagg_router_prefill_legs_total", outcome="ok")
        eventually(
            lambda: router.metric("disagg_router_prefill_legs_total", outcome="ok") >= before + 4, "others do not"
        )
    prefill.behave()
    assert seen.failures == []
    assert router.metric("disagg_router_breaker_opened_total", reason="timeout") == 0
