"""Beside vLLM 0.9.2's own class: each reads what the other writes, byte for byte; and ours takes its place there."""

from typing import Any

import pytest

from connector.v0.original_environment import original_python
from connector.v0.programs import Site, Worker
from connector.v0.test_outcomes import hit, new_batch

_DTYPES = ("float32", "float16", "bfloat16")
_SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mla": {"mla": True, "kv_heads": 16, "attention_heads": 16},
    "mla-disabled": {"mla": True, "kv_heads": 4, "attention_heads": 4},
    "tp-rank-1": {"tp": 2},
}


@pytest.fixture(scope="module")
def original(store: Site, raw: Worker) -> Worker:
    """Importing vLLM takes it a while; the first call waits."""
    del raw
    one = store.worker("original", original_python())
    one("environ", "UNUSED", None, seconds=300)
    return one


@pytest.fixture(scope="module")
def installed(store: Site, raw: Worker) -> Worker:
    del raw
    one = store.worker("installed", original_python())
    one("environ", "UNUSED", None, seconds=300)
    return one


def _open(shape: str, dtype: str, *workers: Worker, **extra: Any) -> None:
    rank = 1 if shape == "tp-rank-1" else 0
    for one in workers:
        one("environ", "VLLM_MLA_DISABLE", "1" if shape == "mla-disabled" else "0")
        one.open({**_SHAPES[shape], "dtype": dtype}, rank, rank, **extra)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("direction", ["from-original", "to-original"])
def test_what_one_sends_the_other_receives(
    original: Worker, producer: Worker, direction: str, shape: str, dtype: str
) -> None:
    sender, receiver = (original, producer) if direction == "from-original" else (producer, original)
    _open(shape, dtype, original, producer)
    for lengths in ((1,), (300,), (20, 7, 33)):
        batch = new_batch(*lengths)
        sender("send", {**batch, "block_size": 16})
        assert hit(receiver, {**batch, "block_size": 8, "slots_seed": 5})


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("shape", _SHAPES)
def test_both_write_the_same_bytes_under_the_same_keys(
    original: Worker, producer: Worker, raw: Worker, shape: str, dtype: str
) -> None:
    _open(shape, dtype, original, producer)
    batch = new_batch(40, 1, token_dtype="int32")
    keys = [key for pair in producer("keys", batch) for key in pair.values()]
    original("send", batch)
    theirs = [raw.bytes_of(key) for key in keys]
    assert all(theirs)
    for key in keys:
        raw("remove", key)
    producer("send", batch)
    assert [raw.bytes_of(key) for key in keys] == theirs


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int32", "uint8", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [[2, 3, 4], [7], []])
def test_single_tensors_are_stored_alike(
    original: Worker, producer: Worker, raw: Worker, shape: list[int], dtype: str
) -> None:
    """`put` and `get`, and the sender's device beside the tensor: -1 for a CPU."""
    _open("gqa", "float32", original, producer)
    names = [f"{one}-{dtype}-{shape}" for one in ("ours", "theirs")]
    for one, name in zip((producer, original), names, strict=True):
        one("put", name, shape, dtype, 4)
    ours, theirs = (raw.bytes_of(name) for name in names)
    assert ours == theirs
    assert b"\xff\xff\xff\xff" in ours
    assert original("get", names[0], shape, dtype, 4) == ["cpu", True]
    assert producer("get", names[1], shape, dtype, 4) == ["cpu", True]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_both_hash_alike(original: Worker, producer: Worker, dtype: str) -> None:
    _open("gqa", "float32", original, producer)
    for numbers in ([], [0], list(range(1000))):
        assert original("hash", numbers, dtype) == producer("hash", numbers, dtype)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_the_original_reads_guarded_values(original: Worker, producer: Worker, dtype: str) -> None:
    _open("gqa", dtype, producer, pair_guard=True)
    _open("gqa", dtype, original)
    batch = new_batch(20, 3)
    producer("send", batch)
    assert hit(original, batch)


def test_the_public_attributes_are_the_same(original: Worker, producer: Worker) -> None:
    _open("tp-rank-1", "float32", original, producer)
    theirs, ours = original("describe"), producer("describe")
    assert ours["attributes"] == theirs["attributes"]
    assert ours["local_tp_rank"] == theirs["local_tp_rank"] == 1
    assert ours["name"] == theirs["name"]


def test_ours_takes_its_place_in_vllm(installed: Worker, consumer: Worker) -> None:
    """vLLM's factory refuses a second class of that name and asks for its own base class."""
    _open("gqa", "bfloat16", installed, consumer)
    assert installed("describe")["module"].startswith("mooncake_store_connector.v0")
    batch = new_batch(20, 3)
    installed("send", batch)
    assert hit(consumer, batch)


def test_named_tensors_are_vllm_s_class_where_vllm_is_loaded(installed: Worker, producer: Worker) -> None:
    for one in (installed, producer):
        one.open({"pp": 2, "stage": 0})
    batch = new_batch(20)
    producer("send", batch, True)
    found = installed("recv", batch, [batch["sequences"][0][0]], True)
    assert found["hidden_equal"]
    assert found["hidden_module"] == "vllm.sequence"
