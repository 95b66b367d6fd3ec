"""The hooks of both roles under vLLM's `Scheduler` and `AsyncScheduler`, with a real agent and a real store.

There is no model and no GPU: `engine.py` says what stands in for them. An answer's tokens are right only if every byte
of KV that its steps read was.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from connector.processes import Process, master
from connector.test_agent import config_file
from connector.v0.programs import CallFailed, Worker
from connector.v1.chain import WRONG_TOKEN, continue_prompt
from connector.v1.programs import ASK, SCRIPT, Answer, Engine

BLOCK = 16
# Tokens in a step, so that longer prompts are computed in pieces.
STEP = 512
STAGES = ("asked", "loading", "ready", "running", "saving")
_draw = random.Random(5)


@dataclass
class Pair:
    """Two engines with the same scheduler on one store."""

    scheduler: str
    one: Engine
    two: Engine


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Process]]:
    """A master: its port and its program."""
    with master(tmp_path_factory.mktemp("store") / "master.log") as running:
        yield running


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, store: tuple[int, Process]) -> Iterator[Worker]:
    """One program for all engines: loading vLLM takes longer than all that they do."""
    folder = tmp_path_factory.mktemp("hooks")
    # Room for 128 blocks in each direction.
    config = config_file(folder, store[0], local_buffer_size="1Mi")
    env = {"MOONCAKE_CONFIG_PATH": str(config), "PYTHONHASHSEED": "0"}
    started = Worker("hooks", folder / "engines.log", env, script=SCRIPT)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module", params=["Scheduler", "AsyncScheduler"])
def pair(request: pytest.FixtureRequest, bench: Worker) -> Pair:
    made = Pair(request.param, Engine(bench, "one"), Engine(bench, "two"))
    for engine in (made.one, made.two):
        engine.open(scheduler=made.scheduler)
    return made


@contextmanager
def other_engine(pair: Pair, name: str = "other", **options: object) -> Iterator[Engine]:
    """One more engine, which ends with the block."""
    engine = pair.one.beside(name)
    engine.open(scheduler=pair.scheduler, **options)
    try:
        yield engine
    finally:
        engine.close()


def new_prompt(tokens: int) -> list[int]:
    return [_draw.randrange(50_000) for _ in range(tokens)]


def loadable(prompt: list[int]) -> int:
    return (len(prompt) - 1) // BLOCK * BLOCK


def is_right(answer: Answer, prompt: list[int], count: int) -> bool:
    return answer.reason == "length" and answer.tokens == continue_prompt(prompt, count)


def prefill(engine: Engine, prompt: list[int]) -> dict[str, object] | None:
    """Compute and store a prompt; what decode is told of it."""
    return engine.complete(prompt, 1, ASK).params


@pytest.mark.parametrize("tokens", [17, 160, STEP, 3 * STEP + 100])
def test_what_one_prefills_the_other_loads(pair: Pair, tokens: int) -> None:
    prompt = new_prompt(tokens)
    answer = pair.two.complete(prompt, 20, prefill(pair.one, prompt))
    assert is_right(answer, prompt, 20)
    assert answer.external == loadable(prompt)


def test_one_wrong_byte_is_told(pair: Pair) -> None:
    """Else nothing here would prove anything."""
    prompt = new_prompt(100)
    name = pair.two.add(prompt, 10, prefill(pair.one, prompt))
    pair.two.step_until("an answer", lambda: len(pair.two.answer(name).tokens) > 0)
    pair.two("spoil", name, 50)
    pair.two.run()
    assert pair.two.answer(name).tokens[-1] == WRONG_TOKEN
    pair.two("forget")


def test_the_engine_s_own_cache_comes_first(pair: Pair) -> None:
    prompt = new_prompt(600)
    pair.two.complete(prompt[:200])
    answer = pair.two.complete(prompt, 5, prefill(pair.one, prompt))
    assert is_right(answer, prompt, 5)
    assert (answer.local, answer.external) == (192, loadable(prompt) - 192)


def test_several_at_a_time(pair: Pair) -> None:
    prompts = [new_prompt(100 * index) for index in range(1, 7)]
    params = [prefill(pair.one, prompt) for prompt in prompts]
    names = [pair.two.add(prompt, 8, told) for prompt, told in zip(prompts, params, strict=True)]
    pair.two.run()
    answers = [pair.two.answer(name) for name in names]
    for answer, prompt in zip(answers, prompts, strict=True):
        assert is_right(answer, prompt, 8)
        assert answer.external == loadable(prompt)


def test_windows_are_right(pair: Pair) -> None:
    """One group sees everything, one the last 40 tokens."""
    prompt = new_prompt(700)
    with other_engine(pair, windows=[None, 40], extra={"cache_prefix": "windows"}) as engine:
        params = prefill(engine, prompt)
        engine("forget")
        answer = engine.complete(prompt, 60, params)
        assert is_right(answer, prompt, 60)
        assert answer.external == loadable(prompt)


# -- ends that come early ----------------------------------------------------------------------------------------------


@contextmanager
def at_stage(pair: Pair, stage: str) -> Iterator[tuple[list[int], str]]:
    """A request of engine two, as far as `stage`."""
    one, two = pair.one, pair.two
    prompt = new_prompt(3 * STEP if stage == "saving" else 60 * BLOCK + 1)
    if stage == "asked":
        params = two("promise", prompt)
    elif stage == "saving":
        params = ASK
    else:
        params = prefill(one, prompt)
    one.step_until("all of it to be stored", lambda: one("unsaved") == 0)
    filler = _fill(two) if stage == "ready" else None
    if stage == "loading":
        # It owns the memory in which the blocks are.
        os.kill(one.agent, signal.SIGSTOP)
    name = two.add(prompt, 12, params)
    try:
        _reach(two, name, stage)
        yield prompt, name
    finally:
        if stage == "loading":
            os.kill(one.agent, signal.SIGCONT)
        if filler is not None:
            two("abort", filler)


def _fill(engine: Engine) -> str:
    """A request that takes most blocks, for a while."""
    name = engine.add(new_prompt(150 * BLOCK), 700)
    engine.step_until("the pool to be filled", lambda: len(engine.answer(name).tokens) > 0)
    return name


def _reach(engine: Engine, name: str, stage: str) -> None:
    if stage == "running":
        engine.step_until(stage, lambda: len(engine.answer(name).tokens) > 2)
    elif stage == "saving":
        engine.step_until("its first step", lambda: engine("stage", name) == "running")
    else:
        engine.step_until(stage, lambda: engine("stage", name) == stage)
        for _ in range(5):
            engine("step")
        assert engine("stage", name) == stage


@pytest.mark.parametrize("stage", STAGES)
def test_an_abort_leaves_nothing_behind(pair: Pair, stage: str) -> None:
    with at_stage(pair, stage) as (prompt, name):
        pair.two("abort", name)
        assert pair.two("stage", name) == "over"
    pair.two.run()
    assert pair.two.answer(name).reason is None
    for engine in (pair.one, pair.two):
        engine.wait_usable()
    # Whatever was stored is whole, and all memory for loads is free again.
    pair.two("forget")
    assert is_right(pair.two.complete(prompt, 12), prompt, 12)
    large = new_prompt(120 * BLOCK + 1)
    params = prefill(pair.one, large)
    answer = pair.two.complete(large, 3, params)
    assert is_right(answer, large, 3)
    assert answer.external == loadable(large)


@pytest.mark.parametrize("stage", STAGES)
def test_requests_end_when_their_agent_is_killed(pair: Pair, stage: str) -> None:
    with at_stage(pair, stage) as (prompt, name):
        os.kill(pair.two.agent, signal.SIGKILL)
        if stage == "loading":
            os.kill(pair.one.agent, signal.SIGCONT)
        if stage != "ready":
            pair.two.run()
    pair.two.run()
    assert is_right(pair.two.answer(name), prompt, 12)
    pair.two.open(scheduler=pair.scheduler)
    pair.one.wait_usable()


def test_a_killed_agent_has_a_successor(pair: Pair) -> None:
    prompt = new_prompt(500)
    os.kill(pair.two.agent, signal.SIGKILL)
    pair.two.wait_usable(False)
    pair.two.wait_usable()
    answer = pair.two.complete(prompt, 3, prefill(pair.one, prompt))
    assert is_right(answer, prompt, 3)
    assert answer.external == loadable(prompt)


def test_kv_in_memory_is_held_for_as_long_as_a_full_engine_keeps_its_request_queued(pair: Pair) -> None:
    prompts = [new_prompt(300) for _ in range(3)]
    params = [prefill(pair.one, prompt) for prompt in prompts]
    with other_engine(pair, at_once=1, extra={"wait_ms": 300}) as engine:
        names = [engine.add(prompt, 10, told) for prompt, told in zip(prompts, params, strict=True)]
        engine.step_until("the last one to be in memory", lambda: engine("stage", names[-1]) == "ready")
        time.sleep(11)
        engine.run()
        answers = [engine.answer(name) for name in names]
        assert all(is_right(answer, prompt, 10) for answer, prompt in zip(answers, prompts, strict=True))
        assert [answer.external for answer in answers] == [loadable(prompt) for prompt in prompts]


def test_time_in_the_queue_of_a_full_engine_is_no_wait_for_kv(pair: Pair) -> None:
    prompt = new_prompt(300)
    params = prefill(pair.one, prompt)
    with other_engine(pair, at_once=1, extra={"wait_ms": 300}) as engine:
        # From now on a prompt that nothing was promised of waits for milliseconds.
        engine.complete(new_prompt(STEP))
        os.kill(engine.agent, signal.SIGSTOP)
        try:
            first, second = engine.add(new_prompt(100), 10), engine.add(prompt, 3, params)
            engine.step_until("the first one to run", lambda: engine("stage", first) == "running")
            time.sleep(0.5)
            engine.step_until("the first one to end", lambda: engine("stage", first) == "over")
            engine("step")
        finally:
            os.kill(engine.agent, signal.SIGCONT)
        engine.run()
        answer = engine.answer(second)
        assert is_right(answer, prompt, 3)
        assert answer.external == loadable(prompt)


@pytest.mark.parametrize("lost", ["agent", "master"])
def test_queued_requests_are_asked_anew_when_the_store_is_back(
    pair: Pair, store: tuple[int, Process], lost: str
) -> None:
    """One was loading or in memory, one comes while the store is lost. Both have their turn after that."""
    prompts = [new_prompt(300) for _ in range(2)]
    params = [prefill(pair.one, prompt) for prompt in prompts]
    with other_engine(pair, at_once=1, blocks=300) as engine:
        running = engine.add(new_prompt(50), 4000)
        engine.step_until("the first one to run", lambda: engine("stage", running) == "running")
        early = engine.add(prompts[0], 3, params[0])
        if lost == "agent":
            os.kill(engine.agent, signal.SIGKILL)
        else:
            store[1].send(signal.SIGSTOP)
        engine.wait_usable(False)
        late = engine.add(prompts[1], 3, params[1])
        if lost == "master":
            store[1].send(signal.SIGCONT)
        for one in (pair.one, pair.two, engine):
            one.wait_usable()
        assert engine("stage", running) == "running"
        engine("abort", running)
        engine.run()
        answers = [engine.answer(name) for name in (early, late)]
        assert all(is_right(answer, prompt, 3) for answer, prompt in zip(answers, prompts, strict=True))
        assert [answer.external for answer in answers] == [loadable(prompt) for prompt in prompts]


def test_an_agent_that_hangs_is_waited_for_once(pair: Pair) -> None:
    with other_engine(pair, extra={"wait_ms": 300}) as engine:
        prompts = [new_prompt(300) for _ in range(3)]
        params = [prefill(pair.one, prompt) for prompt in prompts]
        os.kill(engine.agent, signal.SIGSTOP)
        try:
            answers = [engine.complete(prompt, 3, told) for prompt, told in zip(prompts, params, strict=True)]
        finally:
            os.kill(engine.agent, signal.SIGCONT)
        assert all(is_right(*pair, 3) for pair in zip(answers, prompts, strict=True))
        assert engine.count("waits_over_budget") == 1


# -- the scheduler's own ways ------------------------------------------------------------------------------------------


def test_preempted_requests_are_right_and_so_is_what_they_store(pair: Pair) -> None:
    prompts = [new_prompt(300) for _ in range(3)]
    params = [prefill(pair.one, prompt) for prompt in prompts[:2]]
    with other_engine(pair, blocks=61) as engine:
        names = [engine.add(prompt, 300, told) for prompt, told in zip(prompts, [*params, ASK], strict=True)]
        engine.run()
        assert engine("preemptions") > 0
        answers = [engine.answer(name) for name in names]
        assert all(is_right(answer, prompt, 300) for answer, prompt in zip(answers, prompts, strict=True))
        answer = pair.two.complete(prompts[2], 5, answers[2].params)
    assert is_right(answer, prompts[2], 5)
    assert answer.external == loadable(prompts[2])


def test_what_is_generated_is_shared_where_that_is_wanted(pair: Pair) -> None:
    prompt = new_prompt(100)
    with other_engine(pair, extra={"save_decode_cache": True}) as engine:
        said = engine.complete(prompt, 60).tokens
        turn = [*prompt, *said, *new_prompt(50)]
        # All but what the last steps computed.
        answer = pair.two.complete(turn, 5, pair.two("promise", turn[:144]))
    assert is_right(answer, turn, 5)
    assert answer.external >= 144


def test_a_reset_is_the_end_of_what_was_stored(pair: Pair) -> None:
    prompt = new_prompt(400)
    own = {"extra": {"cache_prefix": f"reset-{pair.scheduler}"}}
    with other_engine(pair, "first", **own) as one, other_engine(pair, "second", **own) as two:
        params = prefill(one, prompt)
        assert two.complete(prompt, 1, params).external == loadable(prompt)
        for engine in (one, two):
            assert engine("reset")
            engine.wait_usable()
        assert two.complete(prompt).external == 0
        assert prefill(one, prompt) is not None
        two("forget")
        answer = two.complete(prompt, 4, params)
        assert is_right(answer, prompt, 4)
        assert answer.external == loadable(prompt)


def test_a_reset_outlives_the_agent(bench: Worker) -> None:
    """The killed agent may hold the epoch's object: until the master knows, no engine can tell which epoch it is."""
    pair = Pair("AsyncScheduler", Engine(bench, "first"), Engine(bench, "second"))
    prompts = [new_prompt(400) for _ in range(2)]
    own = {"extra": {"cache_prefix": "outlived", "wait_ms": 3000}}
    with other_engine(pair, "first", **own) as one, other_engine(pair, "second", **own) as two:

        def do_share() -> bool:
            prompt = new_prompt(200)
            params = prefill(one, prompt)
            return params is not None and two.complete(prompt, 1, params).external == loadable(prompt)

        former = prefill(one, prompts[0])
        for engine in (one, two):
            assert engine("reset")
            engine.wait_usable()
        os.kill(two.agent, signal.SIGKILL)
        two.wait_usable(False)
        two.step_until("both to share in the new epoch", do_share)
        assert two.complete(prompts[0], 1, former).external == 0
        # An agent that dies before it hears of a reset.
        former = prefill(one, prompts[1])
        os.kill(two.agent, signal.SIGSTOP)
        assert two("reset")
        os.kill(two.agent, signal.SIGKILL)
        two.wait_usable()
        assert two.complete(prompts[1], 1, former).external == 0


def test_what_is_dropped_is_not_promised(pair: Pair) -> None:
    """An agent that takes nothing: memory for 128 blocks holds the first four steps, and no more."""
    prompt = new_prompt(6 * STEP)
    with other_engine(pair, extra={"save_wait_ms": 0, "wait_ms": 300}) as engine:
        os.kill(engine.agent, signal.SIGSTOP)
        name = engine.add(prompt, 1, ASK)
        engine.run()
        os.kill(engine.agent, signal.SIGCONT)
        params = engine.answer(name).params
        assert params == pair.two("promise", prompt[: 4 * STEP])
        answer = pair.two.complete(prompt, 2, params)
        assert is_right(answer, prompt, 2)
        assert answer.external == 4 * STEP


def test_a_slow_agent_is_asked_again(pair: Pair) -> None:
    """A prompt that nothing was promised of waits for milliseconds. An agent that is not as fast does not hang."""
    prompt = new_prompt(300)
    params = prefill(pair.one, prompt)
    with other_engine(pair) as engine:
        engine.complete(new_prompt(STEP))
        before = engine.count("waits_over_budget")
        os.kill(engine.agent, signal.SIGSTOP)
        engine.complete(new_prompt(STEP))
        os.kill(engine.agent, signal.SIGCONT)
        answer = engine.complete(prompt, 3, params)
        assert is_right(answer, prompt, 3)
        assert engine.count("waits_over_budget") == before + 1
        assert answer.external == loadable(prompt)


def test_kv_whose_memory_is_gone_is_computed_or_ends_the_engine(pair: Pair) -> None:
    """It cannot be, as far as is known: memory of former agents is kept. No token may come of it.

    vLLM computes such blocks again, but takes the tokens of a step that it has scheduled ahead.
    """
    prompts = [new_prompt(300) for _ in range(2)]
    params = [prefill(pair.one, prompt) for prompt in prompts]
    with other_engine(pair) as engine:
        engine.lose_loads(True)
        names = [engine.add(prompt, 10, told) for prompt, told in zip(prompts, params, strict=True)]
        if pair.scheduler == "AsyncScheduler":
            with pytest.raises(CallFailed, match="KV that was offered is gone"):
                engine.run()
            assert WRONG_TOKEN not in [token for name in names for token in engine.answer(name).tokens]
            return
        engine.run()
        assert all(is_right(engine.answer(name), prompt, 10) for name, prompt in zip(names, prompts, strict=True))
        assert engine.count("misses_memory_gone") > 0
