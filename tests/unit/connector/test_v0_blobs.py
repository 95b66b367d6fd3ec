"""The form of V0 values: headers byte for byte as the safetensors library writes them, and no bad one is taken."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.v0.blobs import DTYPE_BYTES, BadBlobError, plan_layout, read_layout

# What safetensors 0.5.3 and 0.8.0 wrote for {"tensor": [2, 3] of the dtype, "device_id": a scalar of int32}.
GOLDEN = {
    "F64": (
        '{"tensor":{"dtype":"F64","shape":[2,3],"data_offsets":[0,48]},'
        '"device_id":{"dtype":"I32","shape":[],"data_offsets":[48,52]}}'
    ),
    "F32": (
        '{"tensor":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
        '"device_id":{"dtype":"I32","shape":[],"data_offsets":[24,28]}}'
    ),
    "I32": (
        '{"device_id":{"dtype":"I32","shape":[],"data_offsets":[0,4]},'
        '"tensor":{"dtype":"I32","shape":[2,3],"data_offsets":[4,28]}}'
    ),
    "BF16": (
        '{"device_id":{"dtype":"I32","shape":[],"data_offsets":[0,4]},'
        '"tensor":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]}}'
    ),
    "F16": (
        '{"device_id":{"dtype":"I32","shape":[],"data_offsets":[0,4]},'
        '"tensor":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]}}'
    ),
    "F8_E4M3": (
        '{"device_id":{"dtype":"I32","shape":[],"data_offsets":[0,4]},'
        '"tensor":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[4,10]}}'
    ),
    "U8": (
        '{"device_id":{"dtype":"I32","shape":[],"data_offsets":[0,4]},'
        '"tensor":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]}}'
    ),
}
DEVICE = {"device_id": ("I32", ())}


def _blob(header: object, data: bytes = b"") -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("dtype", GOLDEN)
def test_headers_are_those_of_the_library(dtype: str) -> None:
    found = plan_layout({"tensor": (dtype, (2, 3)), **DEVICE}).header
    text = GOLDEN[dtype].encode()
    text += b" " * (-len(text) % 8)
    assert found == len(text).to_bytes(8, "little") + text


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 5), max_size=4).map(tuple)),
        max_size=6,
    ),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_what_is_planned_is_read(tensors: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]) -> None:
    planned = plan_layout(tensors, metadata)
    assert len(planned.header) % 8 == 0
    found = read_layout(memoryview(planned.header + bytes(planned.size - len(planned.header))))
    assert (found.entries, found.metadata, found.size) == (planned.entries, planned.metadata, planned.size)
    # Each tensor lies where its dtype can be read.
    assert all(entry.begin % DTYPE_BYTES[entry.dtype] == 0 for entry in found.entries.values())


WHOLE = plan_layout({"tensor": ("F32", (2, 3)), **DEVICE}, {"pair": "x"})


@given(st.integers(0, WHOLE.size - 1))
def test_no_truncated_file_is_taken(length: int) -> None:
    whole = WHOLE.header + bytes(WHOLE.size - len(WHOLE.header))
    with pytest.raises(BadBlobError):
        read_layout(memoryview(whole[:length]))


def test_no_file_with_bytes_behind_it_is_taken() -> None:
    with pytest.raises(BadBlobError):
        read_layout(memoryview(WHOLE.header + bytes(WHOLE.size - len(WHOLE.header) + 1)))


@given(st.binary(max_size=200))
def test_no_rubbish_is_taken_and_none_raises_anything_else(data: bytes) -> None:
    with pytest.raises(BadBlobError):
        read_layout(memoryview(data))


@given(st.binary(max_size=60))
def test_rubbish_behind_a_plausible_length_is_no_header(data: bytes) -> None:
    with pytest.raises(BadBlobError):
        read_layout(_blob(b"\xff" + data))


def _entry(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **changes}}


@pytest.mark.parametrize(
    "header",
    [
        [],
        "text",
        b"[" * 5000,
        {"t": []},
        _entry(dtype="F99"),
        _entry(dtype=["U8"]),
        _entry(dtype=None),
        _entry(shape=None),
        _entry(shape=[-4]),
        _entry(shape=[4.0]),
        _entry(shape=[True, 4]),
        _entry(shape=[5]),
        _entry(shape=[2**70, 2**70]),
        _entry(data_offsets=[0]),
        _entry(data_offsets=[4, 0]),
        _entry(data_offsets=[1, 5]),
        _entry(data_offsets=[0, 4, 4]),
        {**_entry(), "u": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}},
        {**_entry(), "__metadata__": {"a": 1}},
        {**_entry(), "__metadata__": "a"},
    ],
)
def test_headers_that_lie_are_refused(header: object) -> None:
    with pytest.raises(BadBlobError):
        read_layout(_blob(header, bytes(4)))


def test_a_header_that_is_right_but_not_ours_is_read() -> None:
    """Spaces, another order of keys: other writers may do so."""
    first = b'"b": {"shape": [1], "dtype": "U8", "data_offsets": [3, 4]}'
    text = b"{ " + first + b', "a": {"dtype":"U8","data_offsets":[0,3],"shape":[3]} }'
    assert list(read_layout(_blob(text, bytes(4))).entries) == ["a", "b"]
