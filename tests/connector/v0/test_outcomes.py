"""Whatever is or is not in the store, and whatever a batch is like: what comes of it, by the contract."""

import itertools
from typing import Any

import pytest

from connector.v0.programs import CallFailed, Worker

_SEEDS = itertools.count(500_000)
MISS = {"bypass": False, "caches_equal": True, "hidden": None, "same_input": True}


def new_batch(*lengths: int, **more: Any) -> dict[str, Any]:
    """A batch of prompts that no test had before."""
    return {"sequences": [[next(_SEEDS), length] for length in lengths], **more}


def received(consumer: Worker, batch: dict[str, Any], hits: list[int]) -> dict[str, Any]:
    """What came of receiving; the caches have to hold these sequences' KV, and nothing else."""
    found = consumer("recv", batch, hits)
    return {name: found[name] for name in MISS}


def hit(consumer: Worker, batch: dict[str, Any]) -> bool:
    """Whether all of a batch is received."""
    found = received(consumer, batch, [seed for seed, _ in batch["sequences"]])
    return found == {**MISS, "bypass": True, "hidden": "Tensor"}


@pytest.fixture(autouse=True)
def _connectors(producer: Worker, consumer: Worker) -> None:
    for one in (producer, consumer):
        one.open()
        one("warnings")


def test_nothing_is_there(consumer: Worker) -> None:
    batch = new_batch(5, 9)
    assert received(consumer, batch, []) == MISS
    assert consumer.count("missed_sequences") == 2


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_sequences_that_are_there_are_loaded_beside_one_that_is_not(
    producer: Worker, consumer: Worker, missing: int
) -> None:
    batch = new_batch(20, 30, 40)
    sent = [one for index, one in enumerate(batch["sequences"]) if index != missing]
    producer("send", {"sequences": sent})
    assert received(consumer, batch, [seed for seed, _ in sent]) == MISS
    assert (consumer.count("received_sequences"), consumer.count("missed_sequences")) == (2, 1)


@pytest.mark.parametrize("half", ["kv", "hidden"])
def test_half_a_pair_is_a_miss(producer: Worker, consumer: Worker, raw: Worker, half: str) -> None:
    batch = new_batch(20)
    producer("send", batch)
    key = producer("keys", batch)[0][half]
    assert raw("remove", key) == 0
    assert received(consumer, batch, []) == MISS
    # What is left stays, and the next send completes it.
    producer("send", batch)
    assert hit(consumer, batch)


def test_decode_work_mixed_in(producer: Worker, consumer: Worker) -> None:
    prefill = new_batch(20, 30)
    mixed = {"sequences": [*prefill["sequences"], [None, 50], [None, 7]]}
    producer("send", mixed)
    assert producer.count("sent_sequences") == 2
    assert producer("warnings") == []
    assert received(consumer, mixed, [seed for seed, _ in prefill["sequences"]]) == MISS
    [warning] = consumer("warnings")
    assert "--enable_chunked_prefill=False" in warning
    assert "--max_num_batched_tokens equal to max_seq_len_to_capture" in warning
    assert (consumer.count("mixed_batches"), consumer.count("received_sequences")) == (1, 2)
    assert hit(consumer, prefill)


def test_decode_work_alone(producer: Worker, consumer: Worker) -> None:
    batch = {"sequences": [[None, 50]]}
    producer("send", batch)
    assert producer.count("put_values") == 0
    assert received(consumer, batch, []) == MISS


def test_an_empty_batch(producer: Worker, consumer: Worker) -> None:
    batch: dict[str, Any] = {"sequences": []}
    producer("send", batch)
    assert received(consumer, batch, []) == MISS
    assert consumer("warnings") == []


def test_a_sequence_of_no_tokens_is_a_miss(producer: Worker, consumer: Worker) -> None:
    batch = new_batch(5, 0, 7)
    producer("send", batch)
    assert producer.count("sent_sequences") == 2
    seeds = [seed for seed, length in batch["sequences"] if length]
    assert received(consumer, batch, seeds) == MISS
    assert consumer.count("missed_sequences") == 1


@pytest.mark.parametrize(
    "overrides",
    [
        # 12 of 20 tokens were in the cache, so that 8 are in the batch.
        {"seq_lens": [32, 30]},
        {"seq_lens": [20, 45]},
        # With the number of prefill sequences told, sums that agree by chance do not deceive.
        {"seq_lens": [50, 12], "num_prefills": 2},
        {"seq_lens": [20]},
        {"num_prefill_tokens": 49},
    ],
)
def test_lengths_with_a_cached_part_are_refused(producer: Worker, consumer: Worker, overrides: dict[str, Any]) -> None:
    batch = new_batch(20, 30)
    producer("send", {**batch, "overrides": overrides})
    assert (producer.count("put_values"), producer.count("refused_batches")) == (0, 1)
    producer("send", batch)
    assert received(consumer, {**batch, "overrides": overrides}, []) == MISS
    assert consumer.count("refused_batches") == 1
    for one in (producer, consumer):
        assert "seq_lens" in one("warnings")[0]
    assert hit(consumer, batch)


def test_a_sequence_with_a_token_that_has_no_slot_is_not_sent(producer: Worker, consumer: Worker) -> None:
    batch = new_batch(20, 30, no_slot=[3])
    producer("send", batch)
    assert (producer.count("sent_sequences"), producer.count("unsent_sequences")) == (1, 1)
    assert received(consumer, {**batch, "no_slot": []}, [batch["sequences"][1][0]]) == MISS


def test_nothing_is_written_where_a_token_has_no_slot(producer: Worker, consumer: Worker) -> None:
    batch = new_batch(20, 30)
    producer("send", batch)
    assert hit(consumer, {**batch, "no_slot": [0, 3, 19, 49]})


def test_a_slot_outside_of_the_cache_is_a_miss(producer: Worker, consumer: Worker) -> None:
    batch = new_batch(4)
    producer("send", batch)
    outside = {**batch, "overrides": {"slot_mapping_list": [0, 1, 2, 10_000]}}
    assert received(consumer, outside, []) == MISS
    producer("send", {**new_batch(4), "overrides": outside["overrides"]})
    assert producer.count("unsent_sequences") == 1


_OTHERS: dict[str, dict[str, Any]] = {
    "heads": {"kv_heads": 4},
    "head-size": {"head_dim": 16},
    "layers": {"layers": 4},
    "cache-dtype": {"cache_dtype": "bfloat16"},
    "cache-dtype-of-the-same-width": {"cache_dtype": "int32"},
    "hidden-dtype": {"dtype": "bfloat16", "cache_dtype": "float32"},
    "hidden-size": {"hidden_size": 80, "head_dim": 8},
}


@pytest.mark.parametrize("other", _OTHERS)
def test_what_another_model_wrote_is_a_miss_and_stays(
    producer: Worker, consumer: Worker, raw: Worker, other: str
) -> None:
    producer.open(_OTHERS[other])
    batches = [new_batch(20), new_batch(5)]
    for batch in batches:
        producer("send", batch)
        assert producer.count("sent_sequences") > 0
        assert received(consumer, batch, []) == MISS
        assert raw("exist", *producer("keys", batch)[0].values()) == [1, 1]
    assert (consumer.count("misfit_values"), consumer.count("removed_values")) == (2, 0)
    # Told once, with what helps.
    [warning] = consumer("warnings")
    assert "cache_prefix" in warning
    consumer.open(_OTHERS[other])
    assert hit(consumer, batches[0])


def _replace(raw: Worker, key: str, change: Any) -> None:
    data = raw.bytes_of(key)
    assert raw("remove", key) == 0
    raw.put_bytes(key, change(data))


_DAMAGE = {
    "header-cut": lambda data: data[:50],
    "tensor-cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "no-header": lambda data: b"\xff" * len(data),
    "eight-bytes": lambda data: data[:8],
    "one-byte": lambda data: data[:1],
    "other-names": lambda data: data.replace(b'"tensor"', b'"tensoR"'),
    "no-device": lambda data: data.replace(b'"device_id"', b'"devices_i"'),
}


@pytest.mark.parametrize("damage", _DAMAGE)
@pytest.mark.parametrize("half", ["kv", "hidden"])
def test_a_value_that_is_not_whole_is_a_miss_and_makes_room_for_a_whole_one(
    producer: Worker, consumer: Worker, raw: Worker, half: str, damage: str
) -> None:
    batch = new_batch(20, 6)
    producer("send", batch)
    key = producer("keys", batch)[0][half]
    _replace(raw, key, _DAMAGE[damage])
    assert received(consumer, batch, [batch["sequences"][1][0]]) == MISS
    assert (consumer.count("bad_values"), consumer.count("removed_values")) == (1, 1)
    assert raw("exist", key) == [0]
    producer("send", batch)
    assert hit(consumer, batch)


@pytest.mark.parametrize("method", ["send", "recv"])
def test_tokens_in_bfloat16_are_a_type_error(producer: Worker, method: str) -> None:
    batch = new_batch(5, token_dtype="bfloat16")
    with pytest.raises(CallFailed, match="TypeError"):
        producer(method, batch, *([[]] if method == "recv" else []))


def test_fewer_hidden_states_than_tokens_are_not_sent(producer: Worker, consumer: Worker) -> None:
    batch = new_batch(20, 30)
    producer("send", batch, False, 20)
    assert (producer.count("sent_sequences"), producer.count("unsent_sequences")) == (1, 1)
    assert received(consumer, batch, [batch["sequences"][0][0]]) == MISS


def test_no_process_group_is_needed(producer: Worker) -> None:
    """Log lines of the original asked `torch.distributed` for the rank."""
    assert producer("has_process_group") is False
    producer("send", new_batch(3))
    assert producer.count("sent_sequences") == 1
