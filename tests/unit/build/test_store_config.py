"""mooncake_config.json: what comes out of fields and of a raw override, and what is told about the rest."""

import json
from typing import Any

import pytest
from disagg_operator.build.inputs import ClusterFacts
from unit.build.samples import build, child, container, engine, env_of, flag, has_child, make, only_problem, problems

GI = 1 << 30


def config(store: dict[str, Any] | None = None) -> dict[str, Any]:
    desired = build(make({"kvStore": store or {}}))
    loaded: dict[str, Any] = json.loads(
        child(desired, "ConfigMap", "llama-mooncake-config")["data"]["mooncake_config.json"]
    )
    return loaded


def hints(store: dict[str, Any]) -> str:
    return "\n".join(build(make({"kvStore": store})).hints)


def test_defaults_give_one_file_for_all_pods() -> None:
    assert config() == {
        "mode": "embedded",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": "llama-master.team-a.svc:50051",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 4 * GI,
        "local_buffer_size": GI,
    }


def test_sizes_of_upstreams_documentation_become_bytes() -> None:
    """Field case C01: upstream's documented file, with and without `mode`."""
    raw = {"global_segment_size": "80GB", "local_buffer_size": "4GB"}
    for mode in ({}, {"mode": "embedded"}):
        values = config({"config": {**raw, **mode}})
        assert (values["global_segment_size"], values["local_buffer_size"]) == (85899345920, 4294967296)


def test_a_standalone_store_takes_no_segment_of_engines() -> None:
    """Field case C01."""
    found = only_problem({"kvStore": {"segmentSize": "80GB", "config": {"mode": "standalone-store"}}})
    assert found.path == "spec.kvStore.segmentSize"
    assert "0" in found.remedy
    store = {"segmentSize": 0, "config": {"mode": "standalone-store"}}
    assert config(store)["global_segment_size"] == 0
    desired = build(make({"kvStore": store}))
    assert (desired.segments, desired.pool_bytes) == ({"prefill": 0, "decode": 0}, 0)


def test_an_unknown_mode_is_told_with_the_valid_ones() -> None:
    """Field case C01."""
    found = only_problem({"kvStore": {"config": {"mode": "shared"}}})
    assert found.path == "spec.kvStore.config.mode"
    assert "embedded" in found.remedy
    assert "standalone-store" in found.remedy


def test_the_oldest_form_works_with_its_missing_sizes() -> None:
    """Field case C02: etcd metadata, a static local_hostname, no sizes."""
    raw = {
        "local_hostname": "10.0.0.5",
        "metadata_server": "etcd://10.0.0.9:2379",
        "protocol": "rdma",
        "device_name": "erdma_0",
        "master_server_address": "10.0.0.9:50001",
    }
    assert all("no RDMA device is asked for" in found.found for found in problems({"kvStore": {"config": raw}}))
    store = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca"}, "config": raw}
    desired = build(make({"kvStore": store}))
    values = config(store)
    assert (values["protocol"], values["device_name"]) == ("rdma", "erdma_0")
    assert (values["global_segment_size"], values["local_buffer_size"]) == (4 * GI, GI)
    assert "local_hostname" not in values
    told = "\n".join(desired.hints)
    assert "spec.kvStore.config.local_hostname: ignored" in told
    assert "no etcd plug-in" in told
    assert "spec.kvStore.config.master_server_address: engines use this master" in told
    assert "--master-health-url" not in container(desired, "prefill", "mooncake-config")["args"]


def test_integers_stay_integers_and_words_become_booleans() -> None:
    """Field case C04."""
    raw = {"global_segment_size": 42949672960, "use_ascend_direct": "true", "local_hostname": "$POD_IP"}
    values = config({"protocol": "ascend", "config": {**raw, "metadata_server": "redis://redis-svc:6379"}})
    assert values["global_segment_size"] == 42949672960
    assert values["use_ascend_direct"] is True
    assert values["metadata_server"] == "redis://redis-svc:6379"
    assert "POD_IP" not in json.dumps(values)
    assert only_problem({"kvStore": {"config": {"use_ascend_direct": "maybe"}}}).path.endswith("use_ascend_direct")


def test_a_third_dialect_is_refused_without_its_secret() -> None:
    """Field case C05."""
    raw = {"engine_ip": "10.0.0.12", "metadata_backend": "redis", "metadata_server_auth": "s3cret"}
    found = problems({"kvStore": {"config": raw}})
    assert {p.path.rpartition(".")[2] for p in found} == set(raw)
    assert all("s3cret" not in str(p) for p in found)


@pytest.mark.parametrize(
    ("size", "meaning"),
    [("4Gi", 4 * GI), ("4GB", 4 * GI), ("4gb", 4 * GI), (" 64MB ", 64 << 20), ("4G", 3992977408), (3221225472, 3 * GI)],
)
def test_sizes_are_told_in_bytes(size: str | int, meaning: int) -> None:
    """Field case C07: the connector's table says what each means; segments are cut to the allocator's alignment."""
    assert config({"segmentSize": size})["global_segment_size"] == meaning


@pytest.mark.parametrize("size", ["", "abc", "-1", -1, "0x10", "4g"])
def test_sizes_that_do_not_parse_name_their_field(size: str | int) -> None:
    """Field case C07."""
    assert only_problem({"kvStore": {"segmentSize": size}}).path == "spec.kvStore.segmentSize"
    assert only_problem({"kvStore": {"config": {"local_buffer_size": size}}}).path.startswith("spec.kvStore.config.")


def test_true_is_no_size() -> None:
    """Field case C07."""
    found = only_problem({"kvStore": {"config": {"local_buffer_size": True}}})
    assert "true or false" in found.found


def test_odd_segments_are_rounded_down_and_told() -> None:
    """Field case C08."""
    store = {"segmentSize": 21474836481}
    assert config(store)["global_segment_size"] == 20 * GI
    assert "spec.kvStore.segmentSize: 21474836481 bytes are rounded down to 21474836480" in hints(store)


@pytest.mark.parametrize(
    ("address", "full"),
    [
        ("mc:8080", "http://mc:8080/metadata"),
        ("http://mc.ops.svc:8080", "http://mc.ops.svc:8080/metadata"),
        ("http://mc.ops.svc:8080/metadata/", "http://mc.ops.svc:8080/metadata"),
        ("http://[fd00::9]:8080/metadata", "http://[fd00::9]:8080/metadata"),
    ],
)
def test_metadata_addresses_are_brought_into_full_form(address: str, full: str) -> None:
    """Field cases C10 and C44."""
    assert config({"metadata": {"type": "HTTP", "external": {"address": address}}})["metadata_server"] == full


@pytest.mark.parametrize(
    "address", ["http://0.0.0.0:15002/metadata", "127.0.0.1:2379", "redis://r:6379", "fd00::9:8080:x"]
)
def test_addresses_that_cannot_be_meant_name_their_field(address: str) -> None:
    """Field cases C10 and C44."""
    found = only_problem({"kvStore": {"metadata": {"type": "HTTP", "external": {"address": address}}}})
    assert found.path == "spec.kvStore.metadata.external.address"


def test_the_handshake_is_known_in_every_case() -> None:
    """Field case C10."""
    assert config({"config": {"metadata_server": "p2phandshake"}})["metadata_server"] == "P2PHANDSHAKE"


def test_typing_errors_are_told_with_the_nearest_key() -> None:
    """Field case C11."""
    raw = {"tansfer_timeout": 60, "enable_ssd_offload": True, "ssd_offload_path": "/nvme", "preferred_segment": False}
    told = hints({"config": {**raw, "prefer_alloc_in_same_node": True}})
    assert "tansfer_timeout: no reader knows this key; the nearest known key is transfer_timeout" in told
    for key in ("enable_ssd_offload", "ssd_offload_path", "preferred_segment", "prefer_alloc_in_same_node"):
        assert f"{key}: has no effect" in told


@pytest.mark.parametrize(
    ("written", "read"), [("RDMA", "rdma"), (" tcp ", "tcp"), ("efa", "efa"), ("ascend", "ascend")]
)
def test_protocols_are_trimmed_and_lowered(written: str, read: str) -> None:
    """Field case C13."""
    store = {"rdma": {"resourceName": "rdma/hca"}, "protocol": "rdma", "config": {"protocol": written}}
    assert config(store)["protocol"] == read


def test_an_unknown_protocol_is_told_with_the_list() -> None:
    """Field case C13."""
    found = only_problem({"kvStore": {"config": {"protocol": "infiniband"}}})
    assert found.path == "spec.kvStore.config.protocol"
    assert "tcp, rdma, efa, ascend" in found.remedy


@pytest.mark.parametrize("names", ["ibp12s0, ibp75s0", ["ibp12s0", "ibp75s0"]])
def test_lists_of_devices_become_one_string(names: str | list[str]) -> None:
    """Field case C13."""
    store = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca"}, "config": {"device_name": names}}
    assert config(store)["device_name"] == "ibp12s0,ibp75s0"


def test_devices_with_tcp_are_told() -> None:
    """Field case C13."""
    assert "spec.kvStore.devices: has no effect with protocol tcp" in hints({"devices": ["mlx5_0"]})


def test_generated_names_resolve_from_every_namespace() -> None:
    """Field case C43."""
    there = build(make(), ClusterFacts(cluster_domain="corp.example")).endpoint
    assert there == "http://llama-router.team-a.svc.corp.example:8000"
    assert config()["master_server_address"] == "llama-master.team-a.svc:50051"
    external = {"master": {"external": {"address": "mc.ops:50051"}}}
    assert config(external)["master_server_address"] == "mc.ops:50051"
    assert "bare name" not in hints(external)
    told = hints({"master": {"external": {"address": "mc"}}})
    assert "spec.kvStore.master.external.address: mc is a bare name" in told
    assert "mc.<namespace>.svc" in told


@pytest.mark.parametrize(
    ("address", "full"),
    [("mc.ops.svc", "mc.ops.svc:50051"), ("[fd00::12]:50051", "[fd00::12]:50051"), ("fd00::12", "[fd00::12]:50051")],
)
def test_master_addresses_get_port_and_brackets(address: str, full: str) -> None:
    """Field case C44."""
    assert config({"master": {"external": {"address": address}}})["master_server_address"] == full


def test_an_external_master_makes_none() -> None:
    desired = build(make({"kvStore": {"master": {"external": {"address": "mc.ops.svc:50051"}}}}))
    for kind in ("Deployment", "Service", "NetworkPolicy", "PodMonitor"):
        assert not has_child(desired, kind, "llama-master")


@pytest.mark.parametrize(
    ("metadata", "server"),
    [
        ({"type": "HTTP"}, "http://llama-metadata.team-a.svc:8080/metadata"),
        ({"type": "Etcd", "image": "etcd:3.7"}, "etcd://llama-metadata.team-a.svc:2379"),
        ({"type": "Etcd", "external": {"address": "e.ops.svc:2379"}}, "http://e.ops.svc:2379/metadata"),
        ({"type": "Redis", "external": {"address": "redis://r.ops.svc"}}, "redis://r.ops.svc:6379"),
    ],
)
def test_every_type_of_metadata_has_its_address(metadata: dict[str, Any], server: str) -> None:
    store = {"metadata": metadata}
    if server.startswith("http://e."):
        assert only_problem({"kvStore": store}).remedy.startswith("with type Etcd write etcd://host:port")
        return
    assert config(store)["metadata_server"] == server
    assert has_child(build(make({"kvStore": store})), "Deployment", "llama-metadata") == ("external" not in metadata)


def test_tcp_is_forced_where_a_node_has_rdma_devices() -> None:
    """Field case C47: the effective protocol decides, an override included."""
    assert env_of(engine(build(make())))["MC_FORCE_TCP"] == "1"
    rdma = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca"}}
    assert "MC_FORCE_TCP" not in env_of(engine(build(make({"kvStore": rdma}))))
    back = build(make({"kvStore": {**rdma, "config": {"protocol": "tcp"}}}))
    assert env_of(engine(back))["MC_FORCE_TCP"] == "1"


@pytest.mark.parametrize("store", [{}, {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca"}}], ids=["tcp", "rdma"])
def test_a_master_that_hangs_costs_engines_seconds(store: dict[str, Any]) -> None:
    """Mooncake's own limit is 30 s a call, and saves and loads wait for it."""
    assert env_of(engine(build(make({"kvStore": store}))))["MC_RPC_TIMEOUT_MS"] == "2000"


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"env": [{"name": "MC_RPC_TIMEOUT_MS", "value": "500"}]}},
        {"prefill": {"env": [{"name": "MC_RPC_TIMEOUT_MS", "value": "500"}]}},
    ],
    ids=["shared", "role"],
)
def test_a_users_own_limit_wins(spec: dict[str, Any]) -> None:
    values = [entry["value"] for entry in engine(build(make(spec)))["env"] if entry["name"] == "MC_RPC_TIMEOUT_MS"]
    assert values == ["500"]


def test_the_interface_is_for_the_store_alone() -> None:
    """Field case C55: KV travels on net1, HTTP stays on the pod's own address."""
    desired = build(make({"kvStore": {"interface": "net1"}}))
    args = container(desired, "decode", "mooncake-config")["args"]
    assert args[args.index("--interface") + 1] == "net1"
    assert env_of(engine(desired, "decode"))["VLLM_HOST_IP"] == "$(POD_IP)"
    assert flag(engine(desired, "decode"), "--host") is None
