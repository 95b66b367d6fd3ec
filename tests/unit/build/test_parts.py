"""Master, metadata service and router: flags for what was written, probes, rights, keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from disagg_router.settings import parse_settings
from mooncake_store_connector.__main__ import main
from unit.build.samples import build, child, container, env_of, flag, has_child, make, only_problem, pod_spec


def master_args(wish: dict[str, Any]) -> list[str]:
    args: list[str] = container(build(make({"kvStore": {"master": wish}})), "master", "master")["args"]
    return args


def test_an_untouched_master_is_given_no_tuning() -> None:
    """Field case C17: what was not set is the binary's own default."""
    assert master_args({}) == [
        "--rpc_address=0.0.0.0",
        "--rpc_port=50051",
        "--metrics_host=127.0.0.1",
        "--metrics_port=9004",
        "--logtostderr",
    ]


@pytest.mark.parametrize(
    ("field", "value", "argument"),
    [
        ("defaultKvLeaseTtl", "60s", "--default_kv_lease_ttl=60000"),
        ("defaultKvLeaseTtl", "5000ms", "--default_kv_lease_ttl=5000"),
        ("defaultKvLeaseTtl", "1h", "--default_kv_lease_ttl=3600000"),
        ("evictionHighWatermarkRatio", 0.95, "--eviction_high_watermark_ratio=0.95"),
        ("evictionHighWatermarkRatio", 1.0, "--eviction_high_watermark_ratio=1.0"),
        ("evictionRatio", 0.05, "--eviction_ratio=0.05"),
        ("rpcThreads", 32, "--rpc_thread_num=32"),
        ("clientTtl", "1500ms", "--client_ttl=2"),
    ],
)
def test_tuning_becomes_one_flag(field: str, value: Any, argument: str) -> None:
    """Field case C17."""
    assert master_args({field: value})[5:] == [argument]


def test_the_masters_admin_port_stays_in_its_pod() -> None:
    """Field case C95: the port without a lock listens on loopback, the front passes reads."""
    desired = build(make())
    front = container(desired, "master", "admin-front")
    assert env_of(front) == {"FRONT_PORT": "9003", "MASTER_ADMIN_PORT": "9004"}
    ports = {p["name"]: p["port"] for p in child(desired, "Service", "llama-master")["spec"]["ports"]}
    assert ports == {"rpc": 50051, "admin": 9003}
    assert child(desired, "Service", "llama-master")["spec"]["type"] == "ClusterIP"


def test_two_masters_never_stand_side_by_side() -> None:
    assert child(build(make()), "Deployment", "llama-master")["spec"]["strategy"] == {"type": "Recreate"}


def test_metadata_services_are_made_as_asked() -> None:
    assert not has_child(build(make()), "Deployment", "llama-metadata")
    http = build(make({"kvStore": {"metadata": {"type": "HTTP"}}}))
    assert flag(container(http, "metadata", "metadata"), "--port") == "8080"
    etcd = build(make({"kvStore": {"metadata": {"type": "Etcd", "image": "etcd.example/etcd:3.7"}}}))
    made = container(etcd, "metadata", "metadata")
    assert made["image"] == "etcd.example/etcd:3.7"
    assert "--advertise-client-urls=http://llama-metadata.team-a.svc:2379" in made["args"]


def test_the_router_sees_pods_of_its_resource_alone() -> None:
    args = container(build(make()), "router", "discovery")["args"]
    for role in ("prefill", "decode"):
        at = args.index(f"--{role}-selector")
        assert args[at + 1 : at + 3] == ["inference.disagg.io/name=llama", f"inference.disagg.io/role={role}"]
    assert "--service-discovery-namespace=team-a" in args


def test_discovery_outwaits_an_engines_readiness() -> None:
    """An engine that hangs must turn NotReady first, or discovery forgets it for good."""
    desired = build(make())
    probe = container(desired, "decode", "engine")["readinessProbe"]
    wait = flag(container(desired, "router", "discovery"), "--worker-startup-timeout-secs")
    assert int(wait or 0) > probe["periodSeconds"] * probe["failureThreshold"]


def test_the_front_is_told_what_the_resource_says() -> None:
    router = {"prefillTimeout": "1500ms", "maxBodySize": "1Mi", "service": {"port": 80, "type": "NodePort"}}
    desired = build(make({"model": {"uri": "hf://o/m", "name": "chat"}, "router": router}))
    front = container(desired, "router", "router")
    assert flag(front, "--prefill-timeout") == "1.5"
    assert flag(front, "--max-body-size") == "1048576"
    assert flag(front, "--model-name") == "chat"
    assert flag(front, "--direct-decode-url") == "http://llama-decode.team-a.svc:8000"
    service = child(desired, "Service", "llama-router")["spec"]
    assert (service["type"], service["ports"][0]["port"]) == ("NodePort", 80)
    assert desired.endpoint == "http://llama-router.team-a.svc.cluster.local:80"


def test_api_keys_are_files_that_can_change() -> None:
    desired = build(make({"apiKeySecretRef": {"name": "keys", "key": "clients"}}))
    secret = next(v for v in pod_spec(desired, "router")["volumes"] if v["name"] == "api-keys")["secret"]
    assert secret == {"secretName": "keys", "items": [{"key": "clients", "path": "keys"}], "optional": False}
    front = container(desired, "router", "router")
    mount = next(m for m in front["volumeMounts"] if m["name"] == "api-keys")
    assert flag(front, "--api-key-file") == f"{mount['mountPath']}/keys"
    assert "subPath" not in mount, "a subPath mount is never updated"
    assert flag(container(build(make()), "router", "router"), "--api-key-file") is None


def test_the_routers_rights_are_to_read_pods() -> None:
    desired = build(make())
    rules = child(desired, "Role", "llama-router")["rules"]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert pod_spec(desired, "router")["automountServiceAccountToken"] is True
    for part in ("prefill", "decode", "master"):
        assert pod_spec(desired, part)["automountServiceAccountToken"] is False


def test_templates_reach_router_and_master() -> None:
    extra = {"spec": {"nodeSelector": {"pool": "small"}}}
    desired = build(make({"router": {"template": extra}, "kvStore": {"master": {"template": extra}}}))
    for part in ("router", "master"):
        assert pod_spec(desired, part)["nodeSelector"] == {"pool": "small"}


def test_router_service_annotations_are_the_users() -> None:
    desired = build(make({"router": {"service": {"annotations": {"cloud/lb": "internal"}}}}))
    assert child(desired, "Service", "llama-router")["metadata"]["annotations"] == {"cloud/lb": "internal"}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"router": {"maxBodySize": "1GB", "prefillTimeout": "1h30m"}, "apiKeySecretRef": {"name": "a", "key": "b"}},
        {"router": {"maxBodySize": "4Ki", "prefillTimeout": "1ms"}, "model": {"uri": "hf://o/m", "name": "a b=c"}},
    ],
)
def test_the_front_understands_its_flags(spec: dict[str, Any]) -> None:
    settings = parse_settings(container(build(make(spec)), "router", "router")["args"])
    assert settings.max_buffered_bytes >= 2 * settings.max_body_size
    assert settings.model_names == (spec.get("model", {}).get("name", "model"),)
    assert (settings.api_key_file is not None) == ("apiKeySecretRef" in spec)
    grace = pod_spec(build(make(spec)), "router")["terminationGracePeriodSeconds"]
    assert settings.lame_duck_seconds + settings.drain_seconds < grace


def test_prefill_is_asked_for_the_hand_off_where_our_connector_runs() -> None:
    ours = parse_settings(container(build(make()), "router", "router")["args"])
    assert json.loads(ours.prefill_params) == {"mooncake_store": {"v": 1}}
    other = make({"prefill": {"kvTransferConfig": {"kv_connector": "NixlConnector"}}})
    assert parse_settings(container(build(other), "router", "router")["args"]).prefill_params == "{}"


@pytest.mark.parametrize("size", ["0", "lots", "4g"])
def test_bodies_have_a_size(size: str) -> None:
    assert only_problem({"router": {"maxBodySize": size}}).path == "spec.router.maxBodySize"


def test_the_init_container_understands_its_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as in a pod, with a master that never answers: it writes the pod's own file and ends by itself."""
    desired = build(make({"kvStore": {"startupWait": "1ms"}}))
    template, output = tmp_path / "in.json", tmp_path / "out.json"
    template.write_text(child(desired, "ConfigMap", "llama-mooncake-config")["data"]["mooncake_config.json"])
    places = {"--template": str(template), "--output": str(output), "--master-health-url": "http://127.0.0.1:9/health"}
    args = list(container(desired, "prefill", "mooncake-config")["args"])
    for name, place in places.items():
        args[args.index(name) + 1] = place
    monkeypatch.setenv("POD_IP", "fd00::12")
    monkeypatch.setattr("sys.argv", ["mooncake_store_connector", *args])
    assert main() == 0
    written = json.loads(output.read_text())
    assert written["local_hostname"] == "fd00::12"
    assert written["master_server_address"] == "llama-master.team-a.svc:50051"
