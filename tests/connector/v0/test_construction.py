"""What the constructor refuses and how it says so, and `put` and `get` of its store."""

import json
from typing import Any

import pytest
from mooncake_store_connector.v0.blobs import plan_layout

from connector.v0.programs import NAME, Site, Worker


@pytest.fixture(scope="module")
def one(store: Site, producer: Worker) -> Worker:
    del store
    return producer


def _error(one: Worker, name: str = NAME, **extra: Any) -> str:
    return str(one("open", {}, 0, 0, extra, name))


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_it_is_a_value_error_that_shows_it(store: Site, one: Worker, value: str | None) -> None:
    one("environ", "MOONCAKE_CONFIG_PATH", value)
    try:
        error = _error(one)
    finally:
        one("environ", "MOONCAKE_CONFIG_PATH", str(store.config))
    assert error.startswith("ValueError: ")
    assert "MooncakeStoreConnector" in error
    assert "MOONCAKE_CONFIG_PATH=/path/to/mooncake_config.json" in error


def test_another_connector_s_name_is_a_value_error_that_says_both(one: Worker) -> None:
    error = _error(one, "MooncakeConnector")
    assert error.startswith("ValueError: ")
    assert "'MooncakeConnector'" in error
    assert "'MooncakeStoreConnector'" in error


def test_an_unknown_option_is_named_with_the_nearest(one: Worker) -> None:
    error = _error(one, pair_gaurd=True)
    assert error.startswith("ConfigError: ")
    assert "the nearest known key is pair_guard" in error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ("[]", "must hold one JSON object"),
        ('{"metadata_server": "P2PHANDSHAKE"}', "master_server_address"),
        ('{"master_server_address": "127.0.0.1:1", "protocol": "carrier-pigeon"}', "protocol"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_named(store: Site, one: Worker, text: str | None, said: str) -> None:
    path = store.folder / "bad.json"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    one("environ", "MOONCAKE_CONFIG_PATH", str(path))
    try:
        error = _error(one)
    finally:
        one("environ", "MOONCAKE_CONFIG_PATH", str(store.config))
    assert error.startswith("ConfigError: ")
    assert said in error
    assert "bad.json" in error


@pytest.mark.parametrize(
    ("written", "segment", "buffer"),
    [
        ({}, 3355443200, 1073741824),
        ({"global_segment_size": "1Gi", "local_buffer_size": 512 << 20}, 1 << 30, 512 << 20),
        # Here the store has memory of its own, and clients lend none.
        ({"mode": "standalone-store"}, 0, 1073741824),
    ],
)
def test_sizes_and_the_rest_have_the_original_s_defaults(
    store: Site, one: Worker, written: dict[str, Any], segment: int, buffer: int
) -> None:
    path = store.folder / f"defaults-{segment}-{buffer}.json"
    path.write_text(json.dumps({"master_server_address": "127.0.0.1:1", "metadata_server": "P2PHANDSHAKE", **written}))
    one("environ", "MOONCAKE_CONFIG_PATH", str(path))
    try:
        assert _error(one) == ""
    finally:
        one("environ", "MOONCAKE_CONFIG_PATH", str(store.config))
    found = one("store_config")
    assert (found["segment_size"], found["local_buffer_size"]) == (segment, buffer)
    assert (found["protocol"], found["device"]) == ("tcp", "")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [[2, 3, 4], [1], [], [0, 5], [1000, 33]])
def test_tensors_are_got_as_they_were_put(one: Worker, consumer: Worker, shape: list[int], dtype: str) -> None:
    one.open()
    consumer.open()
    key = f"tensor-{dtype}-{shape}"
    one("put", key, shape, dtype, 3)
    assert consumer("get", key, shape, dtype, 3) == ["cpu", True]


def test_none_is_not_put_and_what_is_missing_is_none(one: Worker, raw: Worker) -> None:
    one.open()
    one("put_none", "nothing")
    assert raw("exist", "nothing") == [0]
    assert one("get", "nothing", [1], "int8", 0) == [None]


def test_a_put_over_an_existing_key_changes_nothing(one: Worker) -> None:
    one.open()
    one("put", "twice", [4], "float32", 1)
    one("put", "twice", [4], "float32", 2)
    assert one("get", "twice", [4], "float32", 1) == ["cpu", True]


def test_what_came_from_another_device_is_got_on_this_rank_s(one: Worker, raw: Worker) -> None:
    """A value tells the sender's CUDA index, which this machine need not have."""
    one.open()
    layout = plan_layout({"tensor": ("U8", (3,)), "device_id": ("I32", ())})
    data = layout.header + (3).to_bytes(4, "little") + bytes([5, 6, 7])
    assert raw.put_bytes("from-cuda-3", data) == 0
    assert one("get_numbers", "from-cuda-3") == ["cpu", [5, 6, 7]]


def test_the_hash_is_blake2b_over_the_tensor_s_bytes(one: Worker) -> None:
    """The first 16 digits of what `b2sum` says of these bytes."""
    assert one("hash", [1, 2, 3], "int64") == 0xA7BA4929F218ABA1
    assert one("hash", [1, 2, 3], "int32") == 0x63CC8751F3CB31DB
    assert one("hash", [], "int64") == 0x786A02F742015903
