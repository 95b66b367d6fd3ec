"""mooncake_config.json: what is accepted, brought into one form, warned of, and refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.addresses import is_unroutable, join_host_port, split_host_port
from mooncake_store_connector.config import KNOWN_KEYS, NormalisedConfig, normalise_config
from mooncake_store_connector.problems import ConfigError, Problem

BASE = {"master_server_address": "mc:50051"}


def _normalise(**raw: object) -> NormalisedConfig:
    return normalise_config({**BASE, **raw})


def _refused(**raw: object) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        _normalise(**raw)
    return caught.value.problems


def test_what_vllm_documents() -> None:
    """Field case C01."""
    raw: dict[str, object] = {
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": "80GB",
        "local_buffer_size": "4GB",
        "protocol": "rdma",
        "device_name": "",
    }
    for mode in ({"mode": "embedded"}, {}):
        values = _normalise(**raw, **mode).values
        assert values["global_segment_size"] == 85899345920
        assert values["local_buffer_size"] == 4294967296
    (standalone,) = _refused(**raw, mode="standalone-store")
    assert standalone.path == "config.global_segment_size"
    assert "0" in standalone.remedy
    (shared,) = _refused(**raw, mode="shared")
    assert "embedded" in shared.remedy
    assert "standalone-store" in shared.remedy


def test_the_oldest_form_gets_defaults_and_hints() -> None:
    """Field case C02."""
    config = normalise_config(
        {
            "local_hostname": "10.0.0.5",
            "metadata_server": "etcd://10.0.0.9:2379",
            "protocol": "rdma",
            "device_name": "erdma_0",
            "master_server_address": "10.0.0.9:50001",
        }
    )
    assert config.values["global_segment_size"] == 4 << 30
    assert config.values["local_buffer_size"] == 1 << 30
    assert "local_hostname" not in config.values
    told = "\n".join(config.warnings)
    assert "etcd plug-in" in told
    assert "local_hostname" in told


def test_forms_from_the_field() -> None:
    """Field case C04."""
    config = _normalise(
        metadata_server="redis://redis-svc:6379",
        protocol="ascend",
        global_segment_size=42949672960,
        use_ascend_direct="true",
        local_hostname="$POD_IP",
    )
    assert config.values["metadata_server"] == "redis://redis-svc:6379"
    assert '"global_segment_size": 42949672960' in json.dumps(config.values)
    assert config.values["use_ascend_direct"] is True
    assert "$POD_IP" not in json.dumps(config.values)


def test_secrets_are_refused_and_never_repeated() -> None:
    """Field case C05."""
    raw = {
        "engine_ip": "10.0.0.12",
        "engine_port": 12345,
        "metadata_backend": "redis",
        "metadata_server": "redis://:s3cret@r:6379",
        "metadata_server_auth": "s3cret",
    }
    problems = _refused(**raw)
    assert {"config.engine_ip", "config.engine_port", "config.metadata_server_auth", "config.metadata_server"} <= {
        problem.path for problem in problems
    }
    assert "metadata_server" in next(p.remedy for p in problems if p.path.endswith("_auth"))
    assert "s3cret" not in "\n".join(map(str, problems))


@pytest.mark.parametrize("key", ["password", "redisPassword", "api_key", "s3_secret", "AUTH", "hf_token"])
@given(value=st.text(min_size=6))
def test_no_message_has_a_secret_in_it(key: str, value: str) -> None:
    marked = f"<<{value}>>"
    assert marked not in "\n".join(map(str, _refused(**{key: marked})))


@pytest.mark.parametrize(
    ("given_", "meant"),
    [
        ("mc:8080", "http://mc:8080/metadata"),
        ("mc", "http://mc:8080/metadata"),
        ("http://mc:8080", "http://mc:8080/metadata"),
        ("http://mc:8080/metadata/", "http://mc:8080/metadata"),
        ("p2phandshake", "P2PHANDSHAKE"),
        ("http://[fd00::9]:8080/metadata", "http://[fd00::9]:8080/metadata"),
        ("fd00::9", "http://[fd00::9]:8080/metadata"),
        ("etcd://a:2379,b:2379", "etcd://a:2379,b:2379"),
    ],
)
def test_metadata_addresses(given_: str, meant: str) -> None:
    """Field cases C10 and C44."""
    assert _normalise(metadata_server=given_).values["metadata_server"] == meant


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:2379", "http://0.0.0.0:15002/metadata", "", "http://localhost:1", "ftp://x", "[::1]:1", "a b"],
)
def test_metadata_addresses_that_no_peer_can_use(address: str) -> None:
    """Field case C10."""
    (problem,) = _refused(metadata_server=address)
    assert problem.path == "config.metadata_server"
    assert problem.remedy


def test_unknown_keys_are_told_with_the_nearest_known_one() -> None:
    """Field case C11."""
    config = _normalise(
        tansfer_timeout=60,
        enable_ssd_offload=True,
        ssd_offload_path="/nvme",
        preferred_segment=False,
        prefer_alloc_in_same_node=True,
    )
    told = {warning.split(":")[0]: warning for warning in config.warnings}
    assert "nearest known key is transfer_timeout" in told["config.tansfer_timeout"]
    assert "no effect" in told["config.enable_ssd_offload"]
    assert "no effect" in told["config.ssd_offload_path"]
    assert config.values["prefer_alloc_in_same_node"] is True


@pytest.mark.parametrize(
    ("protocol", "meant"), [("RDMA", "rdma"), (" tcp ", "tcp"), ("efa", "efa"), ("ascend", "ascend")]
)
def test_protocols(protocol: str, meant: str) -> None:
    """Field case C13."""
    assert _normalise(protocol=protocol).values["protocol"] == meant


def test_an_unknown_protocol_is_refused_with_the_list() -> None:
    """Field case C13."""
    (problem,) = _refused(protocol="infiniband")
    assert "tcp, rdma, efa, ascend" in problem.remedy


@pytest.mark.parametrize(
    ("devices", "meant"),
    [
        ("ibp12s0,ibp75s0", "ibp12s0,ibp75s0"),
        ("auto-discovery", "auto-discovery"),
        (["mlx5_0", "mlx5_1"], "mlx5_0,mlx5_1"),
    ],
)
def test_devices(devices: object, meant: str) -> None:
    """Field case C13."""
    config = _normalise(protocol="rdma", device_name=devices)
    assert config.values["device_name"] == meant
    assert config.warnings == ()


def test_a_device_with_tcp_is_warned_of() -> None:
    """Field case C13."""
    (warning,) = _normalise(protocol="tcp", device_name="mlx5_0").warnings
    assert "no effect with protocol tcp" in warning


def test_rounding_is_told() -> None:
    """Field case C08."""
    config = _normalise(global_segment_size=21474836481)
    assert config.values["global_segment_size"] == 21474836480
    assert "rounded down" in config.warnings[0]
    assert _refused(global_segment_size="1Mi")[0].remedy.endswith("16Mi")


def test_all_problems_are_told_at_once() -> None:
    paths = [problem.path for problem in _refused(mode="x", protocol="y", local_buffer_size="z", client_http_port="w")]
    assert paths == ["config.mode", "config.protocol", "config.local_buffer_size", "config.client_http_port"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(KNOWN_KEYS) | st.text(), _JSON, max_size=6))
def test_anything_is_a_config_or_a_refusal(raw: dict[str, Any]) -> None:
    problems: list[Problem] = []
    try:
        config = normalise_config({**BASE, **raw})
    except ConfigError as error:
        problems = error.problems
    assert all(problem.path.startswith("config.") and problem.remedy for problem in problems)
    if problems:
        return
    again = normalise_config(config.values)
    assert again.values == config.values, "normal forms stay as they are"
    assert isinstance(config.values["global_segment_size"], int)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("mc", "mc", None),
        ("mc:1", "mc", 1),
        ("fd00::12", "fd00::12", None),
        ("[fd00::12]:5", "fd00::12", 5),
        ("[::]", "::", None),
    ],
)
def test_host_and_port(text: str, host: str, port: int | None) -> None:
    """Field case C44."""
    parsed = split_host_port(text)
    assert parsed is not None
    assert (parsed.host, parsed.port) == (host, port)
    if port:
        assert join_host_port(host, port) == text


@pytest.mark.parametrize("text", ["mc:0", "mc:65536", "mc:x", "", ":1", "[mc]:1", "[fd00::12", "a b:1"])
def test_what_is_no_host_and_port(text: str) -> None:
    assert split_host_port(text) is None


def test_unroutable_addresses() -> None:
    assert all(map(is_unroutable, ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"]))
    assert not any(map(is_unroutable, ["10.0.0.1", "mc", "fd00::1"]))


def test_the_shared_part_needs_the_standard_library_alone() -> None:
    """The operator imports it, and its image has neither vLLM nor torch nor Mooncake."""
    names = "sizes config durations problems addresses handoff hashing namespace outage prepare __main__"
    modules = ", ".join(f"mooncake_store_connector.{name}" for name in names.split())
    code = f"import sys; import {modules}; print(sorted(m for m in sys.modules if '.' not in m))"
    source = Path(__file__).parents[3] / "connector" / "src"
    output = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(output.stdout.replace("'", '"')))
    assert not loaded - sys.stdlib_module_names - {"mooncake_store_connector", "__main__"}
