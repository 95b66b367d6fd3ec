"""Who may share KV: namespaces and block hashes."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from mooncake_store_connector.hashing import find_hash_problem
from mooncake_store_connector.namespace import derive_namespace, describe_kv
from mooncake_store_connector.outage import LONGEST_PAUSE, Outage


def _config() -> Any:
    text = SimpleNamespace(rope_parameters={"rope_theta": 1e4}, num_hidden_layers=30)
    return SimpleNamespace(
        model_config=SimpleNamespace(dtype="bfloat16", quantization=None, hf_overrides={}, hf_text_config=text),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=128, prefix_caching_hash_algo="sha256"),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
        ),
        speculative_config=None,
    )


def _namespace(config: Any, layout: str | None = None, version: str = "0.32.0", **extra: object) -> str:
    return derive_namespace("kv1", describe_kv(config, extra, layout, version))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_config.dtype", "float16"),
        ("model_config.quantization", "fp8"),
        ("model_config.hf_text_config.rope_parameters", {"rope_theta": 1e6}),
        ("cache_config.cache_dtype", "fp8"),
        ("cache_config.block_size", 16),
        ("cache_config.prefix_caching_hash_algo", "sha256_cbor"),
        ("parallel_config.tensor_parallel_size", 2),
        ("parallel_config.pipeline_parallel_size", 2),
        ("speculative_config", SimpleNamespace(method="eagle", model="x")),
    ],
)
def test_engines_that_differ_in_bytes_do_not_share(path: str, value: object) -> None:
    config = _config()
    other = copy.deepcopy(config)
    *parents, name = path.split(".")
    target = other
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, name, value)
    assert _namespace(config) == _namespace(copy.deepcopy(config))
    assert _namespace(config) != _namespace(other)


def test_layout_and_version_count_too() -> None:
    assert len({_namespace(_config()), _namespace(_config(), "HND"), _namespace(_config(), version="0.33.0")}) == 3


def test_a_layout_that_ranks_share_leaves_tensor_parallelism_out() -> None:
    two = _config()
    two.parallel_config.tensor_parallel_size = 2
    assert _namespace(_config(), store_tp_size=4) == _namespace(two, store_tp_size=4)


def test_a_function_in_the_config_is_its_name() -> None:
    def override(value: object) -> object:
        return value

    config = _config()
    config.model_config.hf_overrides = override
    assert describe_kv(config, {}, None, "0")["overrides"].endswith("override")


def test_the_prefix_comes_first() -> None:
    assert _namespace(_config()).startswith("kv1-")
    assert not derive_namespace("", {}).startswith("-")


@pytest.mark.parametrize(
    ("algorithm", "seed"), [("sha256", "random"), ("xxhash", None), ("xxhash_cbor", None), ("sha256", " Random ")]
)
def test_hashes_that_differ_in_every_process(algorithm: str, seed: str | None) -> None:
    """Field case C56."""
    problem = find_hash_problem(algorithm, seed)
    assert problem is not None
    assert problem.path == "PYTHONHASHSEED"


@pytest.mark.parametrize(
    ("algorithm", "seed"), [("sha256", None), ("sha256", "0"), ("xxhash", "0"), ("sha256_cbor", "7")]
)
def test_hashes_that_can_be_shared(algorithm: str, seed: str | None) -> None:
    assert find_hash_problem(algorithm, seed) is None


def test_a_store_that_does_not_answer_is_asked_less_and_less() -> None:
    outage, now, pauses = Outage(), 0.0, []
    for _ in range(8):
        outage.failed(now)
        assert outage.is_open(now)
        pauses.append(outage.until - now)
        now = outage.until
        assert not outage.is_open(now)
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    outage.answered()
    assert not outage.is_open(now)
