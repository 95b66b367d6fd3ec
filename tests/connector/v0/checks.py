"""Checks of the V0 connector's parts that need torch, and neither a store nor pytest. Runs in the engine's environment.

Each function named `check_...` is one; the program runs them all and prints, as JSON, what each raised.
"""

import importlib
import importlib.util
import json
import os
import sys
import threading
import traceback
from types import SimpleNamespace
from typing import Any

import torch
from mooncake_store_connector.client import ClientConfig, StoreUnavailable
from mooncake_store_connector.codes import Outcome
from mooncake_store_connector.probe import why_silent
from mooncake_store_connector.v0 import IntermediateTensors, KVConnectorBase, MooncakeStoreConnector, install
from mooncake_store_connector.v0.blobs import BadBlobError
from mooncake_store_connector.v0.foreign import ForeignStore
from mooncake_store_connector.v0.intermediate import is_intermediate, make_intermediate
from mooncake_store_connector.v0.kv_helper import ModelAwareKVHelper
from mooncake_store_connector.v0.link import StoreLink
from mooncake_store_connector.v0.staging import Staging, StagingError
from mooncake_store_connector.v0.states import join_states
from mooncake_store_connector.v0.store import MooncakeStore, choose_device
from mooncake_store_connector.v0.values import Outgoing, Part, read_value
from safetensors.torch import load as library_load  # type: ignore[import-not-found,unused-ignore]  # the engine's
from safetensors.torch import save as library_save

_IMPORTED = set(sys.modules)
_DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
_CONFIG = ClientConfig("127.0.0.1", "P2PHANDSHAKE", "127.0.0.1:1", "tcp", "", 0, 1, "default")


def check_that_no_vllm_was_imported() -> None:
    assert not {name for name in _IMPORTED if name.split(".")[0] == "vllm"}


# -- geometry and copies --


def _helper(tp: int = 1, mla: bool = False, disable: str = "0") -> ModelAwareKVHelper:
    os.environ["VLLM_MLA_DISABLE"] = disable
    try:
        return ModelAwareKVHelper(
            SimpleNamespace(
                model_config=SimpleNamespace(is_deepseek_mla=mla),
                parallel_config=SimpleNamespace(tensor_parallel_size=tp),
            )
        )
    finally:
        del os.environ["VLLM_MLA_DISABLE"]


def _model(**config: Any) -> Any:
    return SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(**config)))


def check_heads_and_head_size_are_read_from_the_config() -> None:
    llama = {"num_key_value_heads": 8, "num_attention_heads": 32, "hidden_size": 4096}
    deepseek = {
        **llama,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "num_key_value_heads": 128,
    }
    for helper, config, wanted in (
        (_helper(), llama, (8, 128)),
        (_helper(tp=2), llama, (4, 128)),
        # Where ranks outnumber KV heads, each has one.
        (_helper(tp=16), llama, (1, 128)),
        (_helper(), {**llama, "head_dim": 256}, (8, 256)),
        (_helper(), {**llama, "head_dim": None}, (8, 128)),
        # Models without grouped heads may not name KV heads.
        (_helper(tp=4), {"num_attention_heads": 12, "hidden_size": 768}, (3, 64)),
        (_helper(mla=True), deepseek, (1, 576)),
        (_helper(mla=True, tp=8), deepseek, (1, 576)),
        (_helper(mla=True, tp=8, disable="1"), deepseek, (16, 192)),
    ):
        assert helper.get_model_args(_model(**config)) == wanted, (config, wanted)


def _copies(dtype: torch.dtype, device: str, cache: torch.Tensor, helper: ModelAwareKVHelper) -> None:
    """Gather some slots of a cache, and scatter them into another of the same form."""
    heads, size = (1, cache.shape[-1]) if helper.has_latents else cache.shape[-2:]
    slots = torch.tensor([9, 3, 4, 5, 30, 0], device=device)
    out = torch.empty((2, len(slots), heads, size), dtype=dtype)
    helper.gather(cache, slots, out)
    if device == "cuda":
        torch.cuda.synchronize()
    wanted = helper.get_kv_from_cache(cache.cpu(), heads, size)
    for half, rows in zip(out, wanted, strict=True):
        assert _same_bits(half, rows[slots.cpu()])
    target = torch.zeros_like(cache)
    helper.scatter((out[0], out[1]), target, slots)
    found = helper.get_kv_from_cache(target.cpu(), heads, size)
    for half, rows in zip(found, wanted, strict=True):
        assert _same_bits(half[slots.cpu()], rows[slots.cpu()])
        others = torch.ones(len(half), dtype=torch.bool)
        others[slots.cpu()] = False
        assert not half[others].view(torch.uint8).any()


def check_rows_are_moved_as_bits() -> None:
    raw = torch.randint(0, 120, (2, 8, 4, 3, 6))
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.float64):
        for device in _DEVICES:
            _copies(dtype, device, raw.to(dtype).to(device), _helper())


def check_rows_of_any_width_are_moved() -> None:
    for size in (1, 2, 3, 5, 7, 8):
        for dtype in (torch.uint8, torch.bfloat16):
            _copies(dtype, "cpu", torch.randint(0, 120, (2, 8, 4, 1, size)).to(dtype), _helper())


def check_latents_are_moved() -> None:
    for device in _DEVICES:
        _copies(torch.bfloat16, device, torch.randn(8, 4, 12).to(torch.bfloat16).to(device), _helper(mla=True))


def check_caches_that_are_not_contiguous_are_written_as_well() -> None:
    """Such as those whose heads stand before the tokens of a block, seen the other way round."""
    for device in _DEVICES:
        cache = torch.randn(2, 8, 3, 4, 6, device=device).transpose(2, 3)
        assert not cache.is_contiguous()
        helper, target = _helper(), torch.zeros(2, 8, 3, 4, 6, device=device).transpose(2, 3)
        slots = torch.tensor([9, 3, 31], device=device)
        keys, values = (half.reshape(-1, 3, 6)[slots] for half in cache)
        helper.scatter((keys, values), target, slots)
        for half, rows in zip(target, (keys, values), strict=True):
            assert torch.equal(half.reshape(-1, 3, 6)[slots], rows)
            assert int(half.abs().sum(-1).sum(-1).count_nonzero()) == 3
        out = torch.empty(2, 3, 3, 6)
        helper.gather(cache, slots, out)
        if device == "cuda":
            torch.cuda.synchronize()
        assert torch.equal(out[0], keys.cpu())


def check_the_helper_writes_a_range_of_slots_but_not_negative_ones() -> None:
    cache, helper = torch.zeros(2, 4, 4, 2, 3), _helper()
    rows = torch.arange(1, 25.0).view(4, 2, 3)
    helper.put_kv_to_cache(None, rows, -rows, None, cache, torch.tensor([99, 7, -1, 2, 0, 99]), 1, 5)
    keys, values = helper.get_kv_from_cache(cache, 2, 3)
    assert torch.equal(keys[[7, 2, 0]], rows[[0, 2, 3]])
    assert torch.equal(values[[7, 2, 0]], -rows[[0, 2, 3]])
    assert int((keys != 0).sum()) == 18


# -- values --


def _written(value: Outgoing) -> torch.Tensor:
    memory = torch.full((value.lead + value.layout.size,), 255, dtype=torch.uint8)[value.lead :]
    value.write(memory)
    return memory


def check_values_are_what_the_library_writes() -> None:
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
    for dtype in (*dtypes, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2):
        for shape in ((2, 3, 5), (1,), (), (0, 4), (4099,)):
            tensor = torch.randint(0, 2, shape).to(dtype)
            wanted = library_save({"tensor": tensor, "device_id": torch.tensor(-1, dtype=torch.int32)})
            memory = _written(Outgoing.of_tensor(Part.of(tensor), tensor.device))
            assert bytes(memory.numpy()) == wanted, (dtype, shape)
            found = read_value(torch.frombuffer(bytearray(wanted), dtype=torch.uint8)).tensor
            assert found is not None
            assert _same_bits(found, tensor)


def check_the_library_reads_named_tensors() -> None:
    tensors = {"hidden_states": torch.randn(3, 4), "residual": torch.randn(3, 4).bfloat16(), "tensor": torch.ones(3)}
    memory = _written(Outgoing.of_named(tensors))
    found = library_load(bytes(memory.numpy()))
    assert found.keys() == {"device_id", *(f"intermediate.{name}" for name in tensors)}
    back = read_value(memory)
    assert back.is_named
    assert all(torch.equal(back.tensors[name], tensor) for name, tensor in tensors.items())


def check_tensors_that_are_not_contiguous_or_need_gradients_are_written() -> None:
    tensor = torch.randn(4, 6, requires_grad=True).t()
    found = read_value(_written(Outgoing.of_tensor(Part.of(tensor), tensor.device))).tensor
    assert found is not None
    assert torch.equal(found, tensor)


def check_a_dtype_that_cannot_be_stored_is_a_type_error() -> None:
    tensor = torch.zeros(2, dtype=torch.complex64)
    assert "complex64" in _raised(TypeError, lambda: Outgoing.of_tensor(Part.of(tensor), tensor.device).layout)


def check_other_files_are_no_values() -> None:
    device = torch.tensor(-1, dtype=torch.int32)
    for tensors in (
        {"tensor": torch.ones(1)},
        {"device_id": device},
        {"tensor": torch.ones(1), "device_id": torch.tensor(-1)},
        {"tensor": torch.ones(1), "device_id": device.view(1)},
        {"tensor": torch.ones(1), "more": torch.ones(1), "device_id": device},
    ):
        memory = torch.frombuffer(bytearray(library_save(tensors)), dtype=torch.uint8)
        _raised(BadBlobError, lambda memory=memory: read_value(memory))


# -- classes that stand in for vLLM's --


def check_intermediate_tensors_behave_as_vllm_s() -> None:
    one = IntermediateTensors({"a": torch.arange(6).view(3, 2), "b": torch.ones(3)})
    assert torch.equal(one["a"], one.tensors["a"])
    assert torch.equal(one[1:3]["a"], one["a"][1:3])
    assert isinstance(one[1:3], IntermediateTensors)
    one["c"] = torch.zeros(3)
    assert len(one) == 3
    assert dict(one.items()).keys() == {"a", "b", "c"}
    assert one == IntermediateTensors(dict(one.items()))
    assert one != IntermediateTensors({"a": one["a"]})
    assert one != 3
    assert "tensors=" in repr(one)


def check_vllm_s_class_is_used_where_it_is_loaded() -> None:
    theirs = type("IntermediateTensors", (IntermediateTensors,), {})
    sys.modules["vllm.sequence"] = SimpleNamespace(IntermediateTensors=theirs)  # type: ignore[assignment]
    try:
        assert type(make_intermediate({})) is theirs
        assert is_intermediate(theirs({}))
        assert is_intermediate(IntermediateTensors({}))
    finally:
        del sys.modules["vllm.sequence"]
    assert type(make_intermediate({})) is IntermediateTensors
    assert not is_intermediate(torch.ones(1))


def check_states_of_several_kinds_are_not_joined() -> None:
    named = IntermediateTensors({"a": torch.ones(2, 3)})
    joined = join_states([named, IntermediateTensors({"a": torch.ones(1, 3)})])
    assert joined is not None
    assert joined["a"].shape == (3, 3)
    assert join_states([torch.ones(2, 3), torch.ones(1, 4)]) is None
    assert join_states([torch.ones(2, 3), torch.ones(2, 3).half()]) is None
    assert join_states([torch.ones(2, 3), named]) is None
    assert join_states([named, IntermediateTensors({"b": torch.ones(1, 3)})]) is None


def check_the_base_class_is_abstract() -> None:
    assert issubclass(MooncakeStoreConnector, KVConnectorBase)
    _raised(TypeError, lambda: KVConnectorBase(0, 0, None))  # type: ignore[abstract]


def check_on_newer_vllm_installing_does_nothing_and_imports_none_of_it() -> None:
    assert importlib.util.find_spec("vllm") is not None
    assert install() is False
    assert "vllm" not in sys.modules


# -- the way to the store --


def check_a_store_of_the_user_s_own_needs_put_and_get_alone() -> None:
    kept: dict[str, torch.Tensor] = {}
    store = ForeignStore(SimpleNamespace(put=kept.__setitem__, get=kept.get))
    assert store.write({"a": Outgoing.of_tensor(Part.of(torch.ones(2)), torch.device("cpu"))})
    assert torch.equal(kept["a"], torch.ones(2))
    found = store.read("a")
    assert found is not None
    assert found.tensor is kept["a"]
    assert store.read("b") is None
    assert not store.write({"a": Outgoing.of_named({"x": torch.ones(2)})})


class _Client:
    """Stands in for Mooncake's client: answers with codes that a test sets."""

    def __init__(self, **codes: Any) -> None:
        self.codes = codes
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            code = self.codes.get(name, 0)
            if isinstance(code, Exception):
                raise code
            return code

        return call

    def called(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)


def _store(client: _Client) -> MooncakeStore:
    """A store over that client, made without a config file."""
    store = MooncakeStore.__new__(MooncakeStore)
    store.device = torch.device("cpu")
    store.counters = importlib.import_module("mooncake_store_connector.counters").Counters()
    store._link = StoreLink(_CONFIG, lambda _: client)
    store._lock = threading.RLock()
    store._staging = None
    return store


def check_what_the_client_raises_is_counted_and_goes_no_further() -> None:
    store = _store(
        _Client(batch_put_from=RuntimeError("x"), get_size=RuntimeError("x"), batch_is_exist=ValueError("x"))
    )
    store.put("a", torch.ones(1))
    assert store.get("a") is None
    assert store.has_all("a") is False
    assert dict(store.counters.snapshot())["put_failures"] == 1
    assert dict(store.counters.snapshot())["get_failures"] == 1


def check_answers_of_another_length_are_failures() -> None:
    store = _store(_Client(batch_put_from=[0, 0], batch_is_exist=[1]))
    store.put("a", torch.ones(1))
    assert dict(store.counters.snapshot())["put_failures"] == 1
    assert store.has_all("a", "b") is False


def check_a_value_that_the_store_cannot_read_is_removed() -> None:
    client = _Client(get_size=100, get_into=-801, remove=0)
    store = _store(client)
    assert store.get("a") is None
    assert client.called("remove") == 1
    assert dict(store.counters.snapshot())["removed_values"] == 1


def check_a_value_whose_owner_is_gone_is_not_removed() -> None:
    client = _Client(get_size=100, get_into=-800)
    store = _store(client)
    assert store.get("a") is None
    assert client.called("remove") == 0
    assert dict(store.counters.snapshot())["get_failures"] == 1


def check_fewer_bytes_than_asked_for_are_a_failure() -> None:
    store = _store(_Client(get_size=100, get_into=60))
    assert store.get("a") is None
    assert dict(store.counters.snapshot())["get_failures"] == 1


def check_memory_that_cannot_be_registered_is_not_used() -> None:
    client = _Client(register_buffer=-600, batch_put_from=[0])
    store = _store(client)
    store.put("a", torch.ones(1))
    assert client.called("batch_put_from") == 0
    assert dict(store.counters.snapshot())["put_failures"] == 1


def check_a_store_that_does_not_answer_is_left_alone() -> None:
    client = _Client(get_size=-900)
    store = _store(client)
    for _ in range(5):
        assert store.get("a") is None
    assert client.called("get_size") == 1
    assert dict(store.counters.snapshot())["get_failures"] == 5


def check_closing_gives_everything_back_once() -> None:
    client = _Client(batch_put_from=[0])
    store = _store(client)
    store.put("a", torch.ones(1))
    for _ in range(2):
        store.close()
    names = [call[0] for call in client.calls]
    assert names.count("register_buffer") == names.count("unregister_buffer") == names.count("close") == 1
    assert names.index("unregister_buffer") < names.index("close")
    store.put("b", torch.ones(1))
    assert client.called("batch_put_from") == 1


def check_staging_grows_and_registers_what_it_uses() -> None:
    client = _Client()
    staging = Staging(client, pinned=False)
    sizes = (10, 3 << 20, 100, 9 << 20)
    for size in sizes:
        memory = staging.take(size)
        assert len(memory) == size
        assert memory.data_ptr() % 64 == 0
        last = [call for call in client.calls if call[0] == "register_buffer"][-1]
        assert last[1] == memory.data_ptr()
        assert last[2] >= size
    assert client.called("register_buffer") == 3
    staging.close()
    assert client.called("unregister_buffer") == 3
    _raised(StagingError, lambda: staging.take(1 << 60))


def check_a_link_joins_later_and_closes_what_came_too_late() -> None:
    attempts: list[int] = []
    client = _Client()

    def open_(_: ClientConfig) -> Any:
        attempts.append(1)
        if len(attempts) <= 2:
            raise [StoreUnavailable("not yet"), RuntimeError("an error of the library")][len(attempts) - 1]
        return client

    link = StoreLink(_CONFIG, open_)
    for _ in range(2):
        assert link.client() is None
        link._outage.answered()  # as if its pause were over
        link._start_joining(wait=10)
    assert link.client() is client
    assert link.close() is client
    assert link.client() is None
    link._join()
    assert client.called("close") == 1
    link.report(Outcome.OK)


def check_a_process_beside_tells_why_a_store_cannot_be_joined() -> None:
    assert "127.0.0.1:1" in why_silent(_CONFIG)
    assert "did not let a client join within" in why_silent(_CONFIG, limit_seconds=0.001)
    real = sys.executable
    try:
        # Then it cannot be told, and joining has to be tried.
        sys.executable = "/nowhere/python"
        assert why_silent(_CONFIG) == ""
    finally:
        sys.executable = real


def check_the_device_is_this_rank_s() -> None:
    def on(kind: object) -> Any:
        return SimpleNamespace(device_config=SimpleNamespace(device_type=kind))

    real = torch.cuda.is_available, torch.cuda.device_count, torch.cuda.current_device
    try:
        torch.cuda.is_available = lambda: False
        assert str(choose_device(on("cuda"), 1)) == str(choose_device(SimpleNamespace(), 1)) == "cpu"
        torch.cuda.is_available, torch.cuda.device_count, torch.cuda.current_device = lambda: True, lambda: 2, lambda: 0
        assert str(choose_device(on("cuda"), 1)) == str(choose_device(SimpleNamespace(), 1)) == "cuda:1"
        # Where each process sees but its own device.
        assert str(choose_device(on("cuda"), 5)) == "cuda:0"
        assert str(choose_device(on("cpu"), 1)) == "cpu"
    finally:
        torch.cuda.is_available, torch.cuda.device_count, torch.cuda.current_device = real


def _raised(kind: type[Exception], call: Any) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    return bool(
        torch.equal(one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8))
    )


def main() -> None:
    """Run all checks."""
    told: dict[str, str] = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                told[name] = ""
            except Exception:
                told[name] = traceback.format_exc()
    print("\n" + json.dumps({"devices": _DEVICES, "checks": told}))


if __name__ == "__main__":
    main()
