"""What one process sends, another receives bit for bit, wherever the two keep it in their caches."""

import itertools
import random
from typing import Any

import pytest

from connector.v0.programs import Worker

_SEEDS = itertools.count(1000)
_DTYPES = ("float32", "float16", "bfloat16")
_GQA = {"attention_heads": 8, "kv_heads": 2, "hidden_size": 64}
_SHAPES: dict[str, dict[str, Any]] = {
    "gqa": _GQA,
    "mha": {"attention_heads": 4, "kv_heads": 4, "hidden_size": 40},
    # Rows of 7 elements: no wide words to move them by.
    "odd-head-size": {"attention_heads": 5, "kv_heads": 1, "hidden_size": 45, "head_dim": 7},
    "mla": {"mla": True, "kv_heads": 16, "attention_heads": 16},
}
_RANKS: dict[str, tuple[dict[str, Any], int, int]] = {
    "tp-rank-0": ({"tp": 2}, 0, 0),
    "tp-rank-1": ({"tp": 2}, 1, 1),
    "more-ranks-than-kv-heads": ({"tp": 8}, 5, 5),
    "tp-over-two-nodes": ({"tp": 4}, 2, 0),
    "stage-0": ({"pp": 2, "stage": 0}, 0, 0),
    "stage-1": ({"pp": 2, "stage": 1}, 1, 1),
    "stage-1-on-a-node-of-its-own": ({"pp": 2, "stage": 1}, 1, 0),
    "stage-1-tp-rank-1": ({"pp": 2, "stage": 1, "tp": 2}, 3, 3),
}


def _batches(draw: random.Random, count: int, longest: int = 2000) -> list[dict[str, Any]]:
    """Batches of 1, 2, 3 ... sequences; the shortest and the longest are among them."""
    batches = []
    for sequences in range(1, count + 1):
        # Most are short, so that the test is.
        lengths = [int(longest ** draw.random()) for _ in range(sequences)]
        lengths[draw.randrange(sequences)] = draw.choice((1, longest))
        batches.append({"sequences": [[next(_SEEDS), length] for length in lengths]})
    return batches


def _check(producer: Worker, consumer: Worker, batch: dict[str, Any], draw: random.Random) -> None:
    """Send with one placing of blocks, receive with another."""
    places = [{"block_size": draw.choice((1, 8, 16, 32, 128)), "slots_seed": draw.randrange(99)} for _ in range(2)]
    producer("send", {**batch, **places[0]})
    found = consumer("recv", {**batch, **places[1]}, [seed for seed, _ in batch["sequences"]])
    assert {name: found[name] for name in ("bypass", "caches_equal", "hidden", "hidden_equal", "same_input")} == {
        "bypass": True,
        "caches_equal": True,
        "hidden": "Tensor",
        "hidden_equal": True,
        "same_input": True,
    }


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", _SHAPES)
def test_one_to_eight_sequences(producer: Worker, consumer: Worker, shape: str, dtype: str) -> None:
    draw = random.Random(f"{shape} {dtype}")
    for one in (producer, consumer):
        one.open({**_SHAPES[shape], "dtype": dtype})
    for batch in _batches(draw, 8):
        _check(producer, consumer, batch, draw)
    assert producer.count("sent_sequences") == consumer.count("received_sequences") == 36
    assert consumer.count("bypassed_batches") == 8
    assert producer.count("put_bytes") == consumer.count("get_bytes") > 0


@pytest.mark.parametrize("rank", _RANKS)
@pytest.mark.parametrize("shape", ["gqa", "mla"])
def test_every_stage_and_rank_gets_its_own(producer: Worker, consumer: Worker, shape: str, rank: str) -> None:
    """Each layer and rank has KV of its own, so that KV of another one would not be equal."""
    draw = random.Random(f"{shape} {rank}")
    geometry, number, local = _RANKS[rank]
    for one in (producer, consumer):
        one.open({**_SHAPES[shape], **geometry, "layers": 5}, number, local)
    for batch in _batches(draw, 3, longest=300):
        _check(producer, consumer, batch, draw)


def test_stages_on_one_store_do_not_meet(producer: Worker, consumer: Worker) -> None:
    """Both stages, and both ranks of each, send the same prompt; each finds what it sent."""
    batch = {"sequences": [[next(_SEEDS), 50]]}
    ranks = [(stage, tp) for stage in (0, 1) for tp in (0, 1)]
    for one, call in ((producer, "send"), (consumer, "recv")):
        for stage, tp in ranks:
            one.open({**_GQA, "tp": 2, "pp": 2, "stage": stage, "layers": 4}, stage * 2 + tp, tp)
            if call == "send":
                one("send", batch)
                assert one.count("sent_sequences") == 1
            else:
                assert one("recv", batch, [batch["sequences"][0][0]])["caches_equal"]


def test_mla_without_its_optimisation_has_ordinary_heads(producer: Worker, consumer: Worker) -> None:
    draw = random.Random(4)
    for one in (producer, consumer):
        one("environ", "VLLM_MLA_DISABLE", "1")
        one.open({"mla": True, "kv_heads": 4, "attention_heads": 4})
    try:
        for batch in _batches(draw, 3, longest=100):
            _check(producer, consumer, batch, draw)
    finally:
        for one in (producer, consumer):
            one("environ", "VLLM_MLA_DISABLE", "0")


@pytest.mark.parametrize("shape", ["gqa", "mla"])
def test_a_stage_hands_on_named_tensors(producer: Worker, consumer: Worker, shape: str) -> None:
    """All stages but the last have `IntermediateTensors` in place of hidden states."""
    for one in (producer, consumer):
        one.open({**_SHAPES[shape], "pp": 2, "stage": 0, "dtype": "bfloat16"})
    batch = {"sequences": [[next(_SEEDS), 40], [next(_SEEDS), 1]]}
    producer("send", batch, True)
    found = consumer("recv", {**batch, "block_size": 8}, [seed for seed, _ in batch["sequences"]], True)
    assert (found["hidden"], found["hidden_equal"], found["caches_equal"]) == ("IntermediateTensors", True, True)
    assert found["bypass"] is True


def test_tokens_are_hashed_in_their_dtype(producer: Worker, consumer: Worker) -> None:
    for one in (producer, consumer):
        one.open()
    batch = {"sequences": [[next(_SEEDS), 9]], "token_dtype": "int32"}
    seed = batch["sequences"][0][0]
    producer("send", batch)
    assert consumer("recv", batch, [seed])["bypass"] is True
    assert consumer("recv", {**batch, "token_dtype": "int64"}, [])["bypass"] is False


def test_what_is_stored_is_not_sent_again(producer: Worker) -> None:
    producer.open()
    batch = {"sequences": [[next(_SEEDS), 30]]}
    for _ in range(3):
        producer("send", batch)
    assert (producer.count("sent_sequences"), producer.count("known_sequences")) == (1, 2)
    assert producer.count("put_values") == 2


def test_a_cache_prefix_keeps_models_apart(producer: Worker, consumer: Worker) -> None:
    batch = {"sequences": [[next(_SEEDS), 30]]}
    seed = batch["sequences"][0][0]
    producer.open(cache_prefix="a")
    producer("send", batch)
    consumer.open(cache_prefix="b")
    assert consumer("recv", batch, [])["bypass"] is False
    consumer.open()
    assert consumer("recv", batch, [])["bypass"] is False
    consumer.open(cache_prefix="a")
    assert consumer("recv", batch, [seed])["bypass"] is True
