"""With `pair_guard`, torn, damaged and foreign values are found; without it, they are read as ever."""

import pytest

from connector.v0.programs import Worker
from connector.v0.test_outcomes import MISS, hit, new_batch, received


@pytest.fixture(autouse=True)
def _connectors(producer: Worker, consumer: Worker) -> None:
    for one in (producer, consumer):
        one.open(pair_guard=True)
        one("warnings")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_guarded_values_are_received(producer: Worker, consumer: Worker, dtype: str) -> None:
    for one in (producer, consumer):
        one.open({"dtype": dtype}, pair_guard=True)
    batch = new_batch(1, 33, 400)
    producer("send", batch)
    assert hit(consumer, {**batch, "block_size": 8, "slots_seed": 3})


def test_readers_without_a_guard_read_guarded_values(producer: Worker, consumer: Worker) -> None:
    consumer.open()
    batch = new_batch(20)
    producer("send", batch)
    assert hit(consumer, batch)


def test_values_without_a_guard_are_not_read_with_one_and_stay(producer: Worker, consumer: Worker, raw: Worker) -> None:
    producer.open()
    batch = new_batch(20)
    producer("send", batch)
    assert received(consumer, batch, []) == MISS
    assert raw("exist", *producer("keys", batch)[0].values()) == [1, 1]
    [warning] = consumer("warnings")
    assert "has no guard" in warning
    assert "cache_prefix" in warning


@pytest.mark.parametrize("half", ["kv", "hidden"])
def test_a_flipped_bit_is_found_and_makes_room(producer: Worker, consumer: Worker, raw: Worker, half: str) -> None:
    batch = new_batch(20)
    producer("send", batch)
    key = producer("keys", batch)[0][half]
    data = bytearray(raw.bytes_of(key))
    data[-20] ^= 1
    raw("remove", key)
    raw.put_bytes(key, bytes(data))
    assert received(consumer, batch, []) == MISS
    assert (consumer.count("bad_values"), consumer.count("removed_values")) == (1, 1)
    # The other half is of an older pair now: that is found as well, and then both are sent.
    producer("send", batch)
    assert received(consumer, batch, []) == MISS
    assert consumer.count("torn_pairs") == 1
    producer("send", batch)
    assert hit(consumer, batch)


def test_halves_of_two_pairs_are_found(producer: Worker, consumer: Worker, raw: Worker) -> None:
    batch = new_batch(20)
    producer("send", batch)
    keys = producer("keys", batch)[0]
    older = raw.bytes_of(keys["hidden"])
    for key in keys.values():
        raw("remove", key)
    producer("send", batch)
    raw("remove", keys["hidden"])
    raw.put_bytes(keys["hidden"], older)
    assert received(consumer, batch, []) == MISS
    assert consumer.count("torn_pairs") == 1
    assert raw("exist", *keys.values()) == [0, 0]
    producer("send", batch)
    assert hit(consumer, batch)


@pytest.mark.parametrize("other", [{"name": "another"}, {"tp": 2}])
def test_another_model_of_the_same_shape_is_found(
    producer: Worker, consumer: Worker, raw: Worker, other: dict[str, object]
) -> None:
    """Without a guard, their KV would be taken: keys name no model."""
    shape = {"kv_heads": 1}
    batch = new_batch(20)
    producer.open({**shape, **other}, pair_guard=True)
    producer("send", batch)
    consumer.open(shape, pair_guard=True)
    consumer("warnings")
    assert received(consumer, batch, []) == MISS
    assert raw("exist", *producer("keys", batch)[0].values()) == [1, 1]
    assert "another model" in consumer("warnings")[0]
    consumer.open({**shape, **other}, pair_guard=True)
    assert hit(consumer, batch)


def test_named_tensors_are_guarded(producer: Worker, consumer: Worker) -> None:
    for one in (producer, consumer):
        one.open({"pp": 2, "stage": 0}, pair_guard=True)
    batch = new_batch(20)
    producer("send", batch, True)
    assert consumer("recv", batch, [batch["sequences"][0][0]], True)["hidden_equal"]
