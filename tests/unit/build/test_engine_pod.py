"""Prefill and decode pods: model sources, devices, memory, parallelism, security, shutdown."""

import json
from typing import Any

import pytest
from disagg_operator.build.inputs import ClusterFacts
from unit.build.pod_security import find_violations
from unit.build.samples import FACTS, build, child, container, engine, env_of, flag, make, only_problem, pod_spec

GI = 1 << 30
RDMA = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca"}}


def spec_of(uri: str, **model: Any) -> dict[str, Any]:
    return {"model": {"uri": uri, **model}}


def volume(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(v for v in pod["volumes"] if v["name"] == name)


def test_a_hub_model_is_downloaded_into_a_cache_with_a_token_by_reference() -> None:
    """Field case C92: only a reference reaches the pod."""
    spec = spec_of("hf://org/Model-7B", revision="abc", tokenSecretRef={"name": "hf", "key": "token"})
    desired = build(make(spec))
    container = engine(desired)
    assert container["args"][:3] == ["org/Model-7B", "--revision", "abc"]
    assert env_of(container)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert env_of(container)["HF_HOME"] == "/var/cache/huggingface"
    assert volume(pod_spec(desired, "prefill"), "model-cache")["emptyDir"] == {}
    assert flag(container, "--served-model-name") == "Model-7B"


def test_a_cache_on_the_node_is_bounded_and_asked_for() -> None:
    desired = build(make(spec_of("hf://org/m", cache={"type": "EmptyDir", "size": "20Gi"})))
    assert volume(pod_spec(desired, "decode"), "model-cache")["emptyDir"] == {"sizeLimit": "20Gi"}
    assert engine(desired, "decode")["resources"]["requests"]["ephemeral-storage"] == "22Gi"


def test_a_cache_on_a_claim_is_shared() -> None:
    cache = {"type": "PersistentVolumeClaim", "claimName": "models"}
    pod = pod_spec(build(make(spec_of("hf://org/m", cache=cache))), "prefill")
    assert volume(pod, "model-cache")["persistentVolumeClaim"] == {"claimName": "models"}


def test_a_claim_is_mounted_whole_and_read_only() -> None:
    """A hub cache on a claim has links from one folder to another; a subPath would cut them."""
    desired = build(make(spec_of("pvc://models/llama/8b/")))
    container = engine(desired)
    assert container["args"][0] == "/models/models/llama/8b"
    assert {"name": "model", "mountPath": "/models/models", "readOnly": True} in container["volumeMounts"]
    claim = volume(pod_spec(desired, "prefill"), "model")["persistentVolumeClaim"]
    assert claim == {"claimName": "models", "readOnly": True}
    assert env_of(container)["HF_HUB_OFFLINE"] == "1"
    assert flag(container, "--served-model-name") == "8b"


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("oci://registry.example:5000/models/llama:v1", "llama"),
        ("oci://registry.example:5000/llama", "llama"),
        ("oci://registry.example/llama:v1@sha256:0000", "llama"),
        ("pvc://models", "models"),
        ("file:///opt/models/qwen/", "qwen"),
        ("hf://gpt2", "gpt2"),
    ],
)
def test_models_are_named_after_the_last_part_of_their_uri(uri: str, name: str) -> None:
    assert build(make(spec_of(uri))).model_name == name


def test_an_image_volume_holds_an_image_model() -> None:
    desired = build(make(spec_of("oci://registry.example/llama:v1")))
    assert volume(pod_spec(desired, "prefill"), "model")["image"] == {"reference": "registry.example/llama:v1"}
    assert engine(desired)["args"][0] == "/models/image"


def test_a_folder_of_the_image_needs_no_volume() -> None:
    desired = build(make(spec_of("file:///opt/models/qwen")))
    assert engine(desired)["args"][0] == "/opt/models/qwen"
    assert {v["name"] for v in pod_spec(desired, "prefill")["volumes"]} == {"config-template", "config", "tmp", "shm"}


def test_gpus_are_one_for_each_rank_unless_written() -> None:
    def limits(role: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = engine(build(make({"prefill": role, "decode": role})))["resources"]["limits"]
        return found

    assert limits({"parallelism": {"tensor": 2, "pipeline": 2, "data": 2}}) == {"nvidia.com/gpu": "8"}
    assert limits({"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}) == {"nvidia.com/mig-1g.5gb": 1}
    assert limits({"resources": {"limits": {"amd.com/gpu": 1}}}) == {"amd.com/gpu": 1}
    claimed = engine(build(make({"prefill": {"resources": {"claims": [{"name": "gpu"}]}}})))
    assert "limits" not in claimed["resources"]
    cpu = engine(build(make({"engine": {"device": "cpu"}})))
    assert "limits" not in cpu["resources"]
    assert cpu["image"].endswith("engine-cpu:1.0.0")


def test_too_few_gpus_for_the_ranks_are_refused() -> None:
    role = {"parallelism": {"tensor": 4}, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    found = only_problem({"prefill": role, "decode": {"parallelism": {"tensor": 4}}})
    assert found.path == "spec.prefill.resources.limits.nvidia.com/gpu"


def test_memory_is_derived_when_nothing_is_written() -> None:
    """Field case C104: 4 x (10 + 1) for the store, 1 of shared memory, 2 + 4 x 4 for vLLM."""
    spec = {"kvStore": {"segmentSize": "10Gi"}, "prefill": {"replicas": 3, "parallelism": {"tensor": 4}}}
    desired = build(make({**spec, "decode": {"parallelism": {"tensor": 4}}}))
    assert engine(desired)["resources"]["requests"]["memory"] == "63Gi"
    assert desired.pool_bytes == (3 + 1) * 4 * 10 * GI
    assert desired.segments == {"prefill": 4, "decode": 4}


def test_memory_on_cpus_counts_the_cache_and_tells_what_it_cannot_count() -> None:
    env = [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "8"}]
    desired = build(make({"engine": {"device": "cpu", "env": env}}))
    assert engine(desired)["resources"]["requests"]["memory"] == "16Gi"
    assert sum("without the model's weights" in hint for hint in desired.hints) == 2
    default = engine(build(make({"engine": {"device": "cpu"}})))
    assert env_of(default)["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert default["resources"]["requests"]["memory"] == "12Gi"


def test_a_written_limit_stands_for_the_request() -> None:
    resources = engine(build(make({"prefill": {"resources": {"limits": {"memory": "64Gi"}}}})))["resources"]
    assert "memory" not in resources["requests"]
    assert resources["limits"]["memory"] == "64Gi"


def test_a_limit_that_cannot_hold_the_ranks_is_refused_with_the_sum() -> None:
    """Field case C104."""

    def spec(limit: str) -> dict[str, Any]:
        role = {"replicas": 3, "parallelism": {"tensor": 4}, "resources": {"limits": {"memory": limit}}}
        return {"kvStore": {"segmentSize": "10Gi"}, "prefill": role, "decode": {"parallelism": {"tensor": 4}}}

    found = only_problem(spec("32Gi"))
    assert found.path == "spec.prefill.resources.limits.memory"
    assert "32Gi cannot hold 4 ranks x (10Gi segment + 1Gi buffer) = 44Gi" in found.found
    build(make(spec("64Gi")))


def test_a_limit_in_the_template_counts_as_well() -> None:
    """Field case C104."""
    small = {"containers": [{"name": "engine", "resources": {"limits": {"memory": "4Gi"}}}]}
    assert "template" in only_problem({"decode": {"template": {"spec": small}}}).path


def test_parallelism_is_passed_where_it_is_more_than_one() -> None:
    desired = build(make({"prefill": {"parallelism": {"tensor": 2, "data": 2}}}))
    container = engine(desired)
    assert flag(container, "--tensor-parallel-size") == "2"
    assert flag(container, "--data-parallel-size") == "2"
    assert flag(container, "--pipeline-parallel-size") is None
    assert flag(engine(desired, "decode"), "--tensor-parallel-size") is None
    assert "KV of one is a miss for the other" in str(desired.hints)


def test_a_replica_over_nodes_is_a_leader_worker_set() -> None:
    decode = {"replicas": 2, "parallelism": {"tensor": 16, "nodes": 2}}
    desired = build(make({"decode": decode, "prefill": {"parallelism": {"tensor": 16}}}))
    group = child(desired, "LeaderWorkerSet", "llama-decode")["spec"]
    assert (group["replicas"], group["leaderWorkerTemplate"]["size"]) == (2, 2)
    leader, worker = (group["leaderWorkerTemplate"][f"{who}Template"] for who in ("leader", "worker"))
    first, second = leader["spec"]["containers"][0], worker["spec"]["containers"][0]
    assert first["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert flag(first, "--nnodes") == "2"
    assert flag(first, "--node-rank") == "$(LWS_WORKER_INDEX)"
    assert second["args"] == [*first["args"], "--headless"]
    assert "readinessProbe" not in second
    assert worker["metadata"]["labels"]["inference.disagg.io/role"] == "decode-worker"
    assert "llm-d.ai/role" not in worker["metadata"]["labels"]
    assert desired.segments["decode"] == 16


def test_without_leader_worker_set_nodes_are_refused() -> None:
    found = only_problem({"decode": {"parallelism": {"tensor": 2, "nodes": 2}}}, facts=ClusterFacts())
    assert found.path == "spec.decode.parallelism.nodes"
    assert "install LeaderWorkerSet" in found.remedy


def test_pods_are_restricted_over_tcp_and_ask_for_more_only_with_rdma() -> None:
    """Field case C97."""
    for role in ("prefill", "decode", "router", "master"):
        assert find_violations(pod_spec(build(make()), role)) == []
    desired = build(make({"kvStore": RDMA}))
    assert find_violations(pod_spec(desired, "prefill")) == ["engine: capabilities.add"]
    assert engine(desired)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert engine(desired)["resources"]["limits"]["rdma/hca"] == "1"
    assert pod_spec(desired, "prefill")["securityContext"]["runAsNonRoot"] is True
    for role in ("router", "master"):
        assert find_violations(pod_spec(desired, role)) == []


def test_host_network_declares_its_ports_and_asks_the_clusters_dns() -> None:
    """Field case C49: the scheduler keeps engines that would clash on different nodes."""
    store = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca", "hostNetwork": "Required"}}
    desired = build(make({"kvStore": store}))
    pod = pod_spec(desired, "decode")
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert engine(desired, "decode")["ports"][0]["hostPort"] == 8000
    assert sum("rollout needs a free node" in hint for hint in desired.hints) == 2
    plain = build(make())
    assert "hostPort" not in engine(plain)["ports"][0]
    assert "hostNetwork" not in pod_spec(plain, "decode")


@pytest.mark.parametrize("protocol", ["rdma", "efa"])
def test_rdma_without_a_device_is_refused(protocol: str) -> None:
    """Field case C46."""
    spec: dict[str, Any] = {"kvStore": {"protocol": protocol}, "decode": {"resources": {"limits": {"rdma/hca": 1}}}}
    found = only_problem(spec)
    assert found.path == "spec.kvStore.protocol"
    assert "no RDMA device is asked for the prefill pods" in found.found
    assert "use tcp" in found.remedy
    for cure in (
        {"resources": {"limits": {"vpc.amazonaws.com/efa": 1}}},
        {"template": {"spec": {"volumes": [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}]}}},
    ):
        build(make({**spec, "prefill": cure}))


def test_service_links_are_off_for_a_resource_called_vllm() -> None:
    """Field case C53."""
    for name in ("vllm", "mooncake"):
        desired = build(make(name=name))
        for part in ("prefill", "decode", "router", "master"):
            assert pod_spec(desired, part, owner=name)["enableServiceLinks"] is False


def test_every_engine_hashes_alike() -> None:
    """Field case C56."""
    desired = build(make())
    assert {env_of(engine(desired, role))["PYTHONHASHSEED"] for role in ("prefill", "decode")} == {"0"}


def test_the_store_is_given_the_digest_as_its_prefix() -> None:
    desired = build(make({"kvStore": {"namespacePrefix": "team-a"}}))
    for role in ("prefill", "decode"):
        config = json.loads(flag(engine(desired, role), "--kv-transfer-config") or "")
        assert config["kv_connector_extra_config"]["cache_prefix"] == f"team-a-{desired.kv_revision}"
        assert config["kv_connector_module_path"] == "mooncake_store_connector.v1"
        assert config["kv_load_failure_policy"] == "recompute"


def test_probes_allow_long_starts_and_long_stalls_but_not_death() -> None:
    """Field case C41."""
    container = engine(build(make({"prefill": {"startupTimeout": "2h30m"}})))
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 9000
    assert 70 < liveness["periodSeconds"] * (liveness["failureThreshold"] - 1) < 600
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"


def test_how_patient_liveness_is_can_be_said_for_each_role() -> None:
    """Field case C41."""
    patient = {"containers": [{"name": "engine", "livenessProbe": {"failureThreshold": 100, "periodSeconds": 30}}]}
    desired = build(make({"prefill": {"startupTimeout": "3h", "template": {"spec": patient}}}))
    prefill, decode = engine(desired), engine(desired, "decode")
    assert prefill["livenessProbe"] == {**decode["livenessProbe"], "failureThreshold": 100, "periodSeconds": 30}
    assert prefill["livenessProbe"]["httpGet"] == decode["livenessProbe"]["httpGet"], "the rest of it stays"
    assert prefill["startupProbe"]["failureThreshold"] == 3 * decode["startupProbe"]["failureThreshold"]


@pytest.mark.parametrize(("grace", "drain", "timeout"), [(60, 15, "40"), (5, 0, "3"), (10, 9, "1"), (600, 0, "595")])
def test_a_leaving_engine_has_time_for_its_requests(grace: int, drain: int, timeout: str) -> None:
    desired = build(make({"decode": {"terminationGracePeriodSeconds": grace, "drainSeconds": drain}}))
    container = engine(desired, "decode")
    assert pod_spec(desired, "decode")["terminationGracePeriodSeconds"] == grace
    assert flag(container, "--shutdown-timeout") == timeout
    hook = {"preStop": {"sleep": {"seconds": drain}}} if drain else None
    assert container.get("lifecycle") == hook


def test_the_init_container_waits_a_bounded_time() -> None:
    args = container(build(make({"kvStore": {"startupWait": "90s"}})), "prefill", "mooncake-config")["args"]
    assert args[args.index("--wait-master") + 1] == "90s"
    assert args[args.index("--master-health-url") + 1] == "http://llama-master.team-a.svc:9003/health"


def test_servers_bind_the_family_of_the_cluster() -> None:
    """Field case C44: vLLM binds IPv4 alone unless told."""
    desired = build(make(), ClusterFacts(ip_family="IPv6"))
    assert flag(engine(desired), "--host") == "::"
    assert "--rpc_address=::" in container(desired, "master", "master")["args"]
    assert "--listen-host=::" in container(desired, "router", "router")["args"]
    found = only_problem({"kvStore": {"interface": "net1"}}, facts=ClusterFacts(ip_family="IPv6"))
    assert found.path == "spec.kvStore.interface"


def test_a_role_wins_over_the_shared_part() -> None:
    shared = {"image": "mine:1", "args": ["--max-num-seqs", "8"], "env": [{"name": "A", "value": "1"}]}
    role = {"image": "mine:2", "args": ["--max-num-seqs", "4"], "env": [{"name": "A", "value": "2"}]}
    desired = build(make({"engine": shared, "decode": role}))
    assert (engine(desired)["image"], engine(desired, "decode")["image"]) == ("mine:1", "mine:2")
    assert flag(engine(desired, "decode"), "--max-num-seqs") == "4"
    assert (env_of(engine(desired))["A"], env_of(engine(desired, "decode"))["A"]) == ("1", "2")


def test_rollouts_and_limits_of_the_workload_are_the_users() -> None:
    spec = {"decode": {"rollout": {"maxSurge": "25%", "maxUnavailable": 1}}, "progressDeadlineSeconds": 120}
    workload = child(build(make(spec)), "Deployment", "llama-decode")["spec"]
    assert workload["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 1}
    assert workload["progressDeadlineSeconds"] == 120


def test_pull_secrets_and_policy_reach_the_pods() -> None:
    desired = build(make({"engine": {"imagePullPolicy": "Always", "imagePullSecrets": [{"name": "reg"}]}}))
    for part in ("prefill", "decode", "router", "master"):
        assert pod_spec(desired, part)["imagePullSecrets"] == [{"name": "reg"}]
    assert engine(desired)["imagePullPolicy"] == "Always"


def test_budgets_are_for_parts_with_more_than_one_pod() -> None:
    desired = build(make({"prefill": {"replicas": 1}, "decode": {"replicas": 2}, "router": {"replicas": 3}}), FACTS)
    made = {c["metadata"]["name"] for c in desired.children if c["kind"] == "PodDisruptionBudget"}
    assert made == {"llama-decode", "llama-router"}


def test_monitors_are_made_where_their_kind_is_known() -> None:
    def monitors(facts: ClusterFacts) -> set[str]:
        return {c["metadata"]["name"] for c in build(make(), facts).children if c["kind"] == "PodMonitor"}

    assert monitors(FACTS) == {"llama-prefill", "llama-decode", "llama-master", "llama-router"}
    assert monitors(ClusterFacts()) == set()
