"""The queue: each key once, one worker at a time, and again after trouble."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from disagg_operator.workqueue import TryAgainError, Urgency, WorkQueue, retry_delay
from hypothesis import given
from hypothesis import strategies as st


class Bench:
    """A queue with workers, and what its work did."""

    def __init__(self, work: Callable[[str], Awaitable[float | None]], workers: int = 2) -> None:
        self.done: list[str] = []
        self.failed: list[str] = []
        self._work = work
        self.queue: WorkQueue[str] = WorkQueue(self._run, spread=lambda: 0.0)
        self.task = asyncio.create_task(self.queue.run(workers))

    async def _run(self, key: str) -> float | None:
        try:
            again = await self._work(key)
        except Exception:
            self.failed.append(key)
            raise
        self.done.append(key)
        return again

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@contextmanager
def fast_delays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("disagg_operator.workqueue._FIRST_DELAY", 0.001)
        yield


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.001)


async def nothing(key: str) -> None:
    return None


async def test_many_events_are_one_work() -> None:
    bench = Bench(nothing)
    for _ in range(100):
        bench.queue.add("a")
    bench.queue.add("b")
    await until(lambda: len(bench.done) == 2)
    assert sorted(bench.done) == ["a", "b"]
    await bench.stop()


async def test_a_key_added_while_at_work_is_worked_on_once_more_and_never_twice_at_once() -> None:
    gate, at_work, most = asyncio.Event(), 0, 0

    async def work(key: str) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await gate.wait()
        at_work -= 1

    bench = Bench(work, workers=4)
    bench.queue.add("a")
    await until(lambda: at_work == 1)
    for _ in range(5):
        bench.queue.add("a")
    await asyncio.sleep(0.01)
    assert most == 1
    gate.set()
    await until(lambda: len(bench.done) == 2)
    await asyncio.sleep(0.01)
    assert (bench.done, most) == (["a", "a"], 1)
    await bench.stop()


async def test_a_slow_key_holds_up_no_other() -> None:
    gate = asyncio.Event()

    async def work(key: str) -> None:
        if key == "slow":
            await gate.wait()

    bench = Bench(work)
    for key in ("slow", "a", "b", "c"):
        bench.queue.add(key)
    await until(lambda: bench.done == ["a", "b", "c"])
    gate.set()
    await until(lambda: "slow" in bench.done)
    await bench.stop()


@pytest.mark.parametrize("error", [TryAgainError("later"), ValueError("a fault"), TimeoutError()])
async def test_trouble_is_tried_again_and_ends_no_worker(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def work(key: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise error

    with fast_delays(monkeypatch):
        bench = Bench(work, workers=1)
        bench.queue.add("a")
        await until(lambda: bench.done == ["a"])
        assert bench.failed == ["a"] * 3
        assert bench.queue.failing() == 0, "success makes up for all failures"
        await bench.stop()


async def test_work_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disagg_operator.workqueue._WORK_SECONDS", 0.01)

    async def work(key: str) -> None:
        if key == "hangs":
            await asyncio.Event().wait()

    bench = Bench(work, workers=1)
    bench.queue.add("hangs")
    bench.queue.add("a")
    await until(lambda: bench.done == ["a"])
    assert bench.queue.failing() == 1
    await bench.stop()


async def test_a_key_comes_back_when_it_asked_to() -> None:
    async def work(key: str) -> float | None:
        return 0.001 if len(bench.done) < 2 else None

    bench = Bench(work)
    bench.queue.add("a")
    await until(lambda: bench.done == ["a"] * 3)
    await asyncio.sleep(0.01)
    assert len(bench.done) == 3
    await bench.stop()


async def test_keys_that_came_up_together_come_back_apart() -> None:
    loop, spreads = asyncio.get_running_loop(), iter([0.0, 0.5, 1.0])

    async def work(key: str) -> float | None:
        return 1000.0

    queue: WorkQueue[str] = WorkQueue(work, spread=lambda: next(spreads))
    for key in ("a", "b", "c"):
        queue.add(key)
    task = asyncio.create_task(queue.run(1))
    await until(lambda: len(queue._timers) == 3)
    dates = [timer.when() - loop.time() for timer in queue._timers.values()]
    assert [round(date, -1) for date in dates] == [1000, 1120, 1250]
    task.cancel()
    await asyncio.wait([task])


async def test_edits_go_before_echoes_and_a_key_keeps_the_best_place_that_it_had() -> None:
    gate = asyncio.Event()

    async def work(key: str) -> None:
        await gate.wait()

    bench = Bench(work, workers=1)
    bench.queue.add("at work")
    await until(lambda: bench.queue.depth() == 0)
    for key in ("echo", "both", "last echo"):
        bench.queue.add(key, Urgency.CHANGED)
    for key in ("edit", "both", "last edit"):
        bench.queue.add(key, Urgency.EDITED)
    bench.queue.add("edit", Urgency.CHANGED)
    assert bench.queue.depth() == 5
    gate.set()
    await until(lambda: len(bench.done) == 6)
    assert bench.done == ["at work", "edit", "both", "last edit", "echo", "last echo"]
    await bench.stop()


async def test_what_was_added_goes_before_what_is_due_by_time_alone() -> None:
    gate = asyncio.Event()

    async def work(key: str) -> float | None:
        if key == "slow":
            await gate.wait()
        return 0.001 if key not in bench.done else None

    bench = Bench(work, workers=1)
    for key in ("a", "b", "slow"):
        bench.queue.add(key)
    await until(lambda: bench.done == ["a", "b"] and bench.queue.depth() == 2)
    bench.queue.add("edited")
    bench.queue.add("b")
    gate.set()
    await until(lambda: len(bench.done) >= 6)
    assert bench.done[:6] == ["a", "b", "slow", "edited", "b", "a"]
    await bench.stop()


async def test_an_event_replaces_a_later_date() -> None:
    async def work(key: str) -> float | None:
        return 3600.0

    bench = Bench(work)
    bench.queue.add("a")
    await until(lambda: len(bench.done) == 1)
    bench.queue.add("a")
    await until(lambda: len(bench.done) == 2)
    assert len(asyncio.get_running_loop()._scheduled) >= 1  # type: ignore[attr-defined]
    await bench.stop()


async def test_how_long_keys_wait_is_known() -> None:
    gate = asyncio.Event()

    async def work(key: str) -> None:
        await gate.wait()

    bench = Bench(work, workers=1)
    assert bench.queue.idle_seconds() == 0
    bench.queue.add("a")
    await until(lambda: bench.queue.depth() == 0)
    assert bench.queue.idle_seconds() == 0, "nobody waits"
    bench.queue.add("b")
    await until(lambda: bench.queue.idle_seconds() > 0.01)
    gate.set()
    await until(lambda: bench.queue.depth() == 0)
    assert bench.queue.idle_seconds() == 0
    await bench.stop()


async def test_the_server_may_ask_for_a_longer_wait() -> None:
    async def work(key: str) -> None:
        raise TryAgainError("too many requests", after=1800.0)

    bench = Bench(work)
    bench.queue.add("a")
    await until(lambda: bench.failed == ["a"])
    loop = asyncio.get_running_loop()
    dates = [timer.when() - loop.time() for timer in heapq.nlargest(1, loop._scheduled)]  # type: ignore[attr-defined]
    assert dates[0] > 1700
    await bench.stop()


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_delays_grow_to_a_bound(failures: int, spread: float) -> None:
    delay = retry_delay(failures, spread)
    assert 0.5 <= delay <= 75
    assert retry_delay(failures + 1, spread) >= delay
    assert retry_delay(failures, 0) <= delay <= retry_delay(failures, 0) * 1.25
