"""Two real vLLM engines that share a store: what prefill computed is there for decode, and changes no token."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from connector.engines import BLOCK, Engine, engine, token_ids, transfer_config, wait_ready, write_store_config
from connector.environment import engine_environment, model
from connector.processes import Process, free_port, master, wait_until

pytestmark = pytest.mark.engines

ASK = {"mooncake_store": {"v": 1}}
HITS = "vllm:external_prefix_cache_hits_total"
ANSWER_TOKENS = 16


@dataclass
class Stack:
    """Prefill and decode on one store, and a plain engine to compare with."""

    prefill: Engine
    decode: Engine
    plain: Engine
    master: Process
    master_port: int


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if not model().is_dir():
        pytest.skip("the test model is not made: `make images` makes it")
    engine_environment()
    folder = tmp_path_factory.mktemp("engines")
    with ExitStack() as running:
        port, store = running.enter_context(master(folder / "master.log"))
        started = []
        for role in ("prefill", "decode", "plain"):
            (folder / role).mkdir()
            shared = role != "plain"
            config = transfer_config() if shared else None
            file = write_store_config(folder / role, port) if shared else None
            started.append(running.enter_context(engine(folder / role, config=config, store=file)))
        for one in started:
            wait_ready(one)
        prefill, decode, plain = started
        yield Stack(prefill, decode, plain, store, port)


def _prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(100, 40_000) for _ in range(length)]


def _loadable(prompt: list[int]) -> int:
    """Tokens that whole blocks can give: one token is always computed."""
    return (len(prompt) - 1) // BLOCK * BLOCK


def test_decode_loads_what_prefill_stored(stack: Stack, full_counts: bool) -> None:
    """Decode is asked the instant that prefill has answered. Field case C67."""
    count = 50 if full_counts else 7
    loaded = loadable = 0
    for index in range(count):
        prompt = _prompt(index, 200 + 2800 * index // (count - 1))
        params = stack.prefill.complete(prompt, 1, ASK)["kv_transfer_params"]
        before = stack.decode.counter(HITS)
        answer = stack.decode.complete(prompt, ANSWER_TOKENS, params)
        loaded += int(stack.decode.counter(HITS) - before)
        loadable += _loadable(prompt)
        assert token_ids(answer) == token_ids(stack.plain.complete(prompt, ANSWER_TOKENS)), f"{len(prompt)} tokens"
        assert not answer.get("kv_transfer_params"), "a client sees no hand-off"
    print(f"{loaded} of {loadable} loadable tokens came from the store")
    assert loaded >= 0.95 * loadable


def test_a_prompt_of_whole_blocks_leaves_one_token_to_compute(stack: Stack) -> None:
    prompt = _prompt(1001, 4 * BLOCK)
    params = stack.prefill.complete(prompt, 1, ASK)["kv_transfer_params"]
    before = stack.decode.counter(HITS)
    answer = stack.decode.complete(prompt, ANSWER_TOKENS, params)
    assert stack.decode.counter(HITS) - before == 3 * BLOCK
    assert token_ids(answer) == token_ids(stack.plain.complete(prompt, ANSWER_TOKENS))


def test_decode_comes_from_the_store_again_after_its_own_cache_is_gone(stack: Stack) -> None:
    prompt = _prompt(1002, 1000)
    stack.prefill.complete(prompt, 1, ASK)
    params = stack.prefill.complete(prompt, 1, ASK)["kv_transfer_params"]
    first = token_ids(stack.decode.complete(prompt, ANSWER_TOKENS, params))
    stack.decode.post("/reset_prefix_cache", {})
    before = stack.decode.counter(HITS)
    assert token_ids(stack.decode.complete(prompt, ANSWER_TOKENS)) == first
    assert stack.decode.counter(HITS) - before == _loadable(prompt)


def test_prefill_uses_what_decode_had_to_compute(stack: Stack) -> None:
    """Any engine uses any other's prefixes. Nothing was promised here, so it may take a second look."""
    prompt = _prompt(1003, 600)
    stack.decode.complete(prompt, 1)

    def reused() -> bool:
        stack.prefill.post("/reset_prefix_cache", {})
        before = stack.prefill.counter(HITS)
        stack.prefill.complete(prompt, 1)
        return stack.prefill.counter(HITS) - before == _loadable(prompt)

    assert reused() or reused() or reused()


@pytest.mark.parametrize(
    "params",
    [
        {"mooncake_store": {"v": 1, "ns": "another", "tokens": 512, "last_key": "00"}},
        {"mooncake_store": {"v": 1, "ns": "x", "tokens": -1}},
        {"mooncake_store": "nonsense"},
        {"mooncake_store": {"v": 99}},
    ],
)
def test_a_false_promise_changes_nothing(stack: Stack, params: dict[str, object]) -> None:
    prompt = _prompt(1004, 600)
    assert token_ids(stack.decode.complete(prompt, 8, params)) == token_ids(stack.plain.complete(prompt, 8))


def test_without_a_master_engines_answer_and_with_it_they_share_again(stack: Stack, tmp_path: Path) -> None:
    """Last, because it takes the master away."""
    stack.master.stop()
    for seed in (2001, 2002, 2003):
        prompt = _prompt(seed, 900)
        params = stack.prefill.complete(prompt, 1, ASK).get("kv_transfer_params")
        answer = stack.decode.complete(prompt, ANSWER_TOKENS, params)
        assert token_ids(answer) == token_ids(stack.plain.complete(prompt, ANSWER_TOKENS))
    with master(tmp_path / "master.log", port=stack.master_port):
        seeds = iter(range(3000, 4000))

        def shares() -> bool:
            prompt = _prompt(next(seeds), 600)
            params = stack.prefill.complete(prompt, 1, ASK).get("kv_transfer_params")
            before = stack.decode.counter(HITS)
            stack.decode.complete(prompt, 1, params)
            return stack.decode.counter(HITS) - before == _loadable(prompt)

        wait_until("engines to share again", 120, shares, stack.decode.process)


def test_an_engine_starts_without_a_master_and_joins_it_late(tmp_path: Path, stack: Stack) -> None:
    """The plain engine stands in for the second one that memory has no room for."""
    stack.prefill.process.stop()
    stack.decode.process.stop()
    port = free_port()
    with engine(tmp_path, config=transfer_config(), store=write_store_config(tmp_path, port)) as late:
        wait_ready(late)
        prompt = _prompt(5001, 600)
        assert token_ids(late.complete(prompt, 8)) == token_ids(stack.plain.complete(prompt, 8))
        with master(tmp_path / "master.log", port=port):
            seeds = iter(range(6000, 7000))

            def reuses() -> bool:
                prompt = _prompt(next(seeds), 600)
                params = late.complete(prompt, 1, ASK).get("kv_transfer_params")
                late.post("/reset_prefix_cache", {})
                before = late.counter(HITS)
                late.complete(prompt, 1, params)
                return late.counter(HITS) - before == _loadable(prompt)

            wait_until("the engine to join", 120, reuses, late.process)
