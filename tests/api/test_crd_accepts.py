"""What the API server accepts: every valid spelling, every field, and what it fills in."""

from typing import Any

import pytest
from api.manifests import at, resource
from api.rest import RESOURCES, Rest

# Field, and values that are all right.
SPELLINGS: list[tuple[str, Any]] = [
    # Field case C07; what each means is in the connector's sizes.
    *[
        ("kvStore.segmentSize", value)
        for value in (
            "4gb",
            "10GB",
            "1.5 GB",
            "600 GB",
            "64MB",
            "96gb",
            " 80GB ",
            3221225472,
            "3221225472",
            "1e9",
            "1E9",
            "4Gi",
            "4G",
            "4GiB",
            "4gib",
            "1tb",
            "1024Mi",
            "20000000k",
            "33554432 b",
            "16Mi",
            "16Ti",
        )
    ],
    ("kvStore.localBufferSize", "512 mb"),
    ("router.maxBodySize", "1Gi"),
    ("engine.sharedMemorySize", 1073741824),
    ("engine.sharedMemorySize", "0.5Gi"),
    ("decode.resources.limits", {"cpu": "500m", "memory": "16Gi", "nvidia.com/gpu": 1, "ephemeral-storage": "1e9"}),
    ("decode.resources.limits", {"rdma/hca_shared_devices_a": 1, "hugepages-2Mi": "1Gi", "vendor.com/mig-1g.5gb": 1}),
    ("router.service.annotations", {"service.beta.kubernetes.io/aws-load-balancer-type": "nlb", "plain": ""}),
    # Field case C01, upstream's documented file as a raw override.
    (
        "kvStore.config",
        {
            "mode": "embedded",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": "mc:50051",
            "global_segment_size": "80GB",
            "local_buffer_size": "4GB",
            "protocol": "rdma",
            "device_name": "",
        },
    ),
    ("kvStore.config", {"global_segment_size": "80GB", "protocol": "rdma"}),
    ("kvStore.config", {"mode": "standalone-store", "global_segment_size": 0}),
    ("kvStore", {"segmentSize": 0, "config": {"mode": "standalone-store"}}),
    ("kvStore", {"segmentSize": "0", "config": {"mode": "standalone-store"}}),
    ("kvStore.config", {"use_ascend_direct": "true", "any_vendor_key": {"nested": [1, 2.5]}}),
    *[("kvStore.protocol", value) for value in ("tcp", "rdma", "efa", "ascend")],
    ("kvStore.devices", ["ibp12s0", "ibp75s0"]),
    ("kvStore.devices", ["auto-discovery"]),
    ("kvStore", {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca", "hostNetwork": "Required"}}),
    # Field case C10.
    *[
        ("kvStore.metadata", {"type": kind, "external": {"address": address}})
        for kind, address in (
            ("HTTP", "mc:8080"),
            ("HTTP", "http://mc:8080"),
            ("HTTP", "http://mc.ops.svc:8080/metadata/"),
            ("HTTP", "https://mc.example.com/metadata"),
            ("HTTP", "http://[fd00::9]:8080/metadata"),
            ("Etcd", "etcd://10.0.0.9:2379"),
            ("Etcd", "etcd://a:2379,b:2379,c:2379"),
            ("Redis", "redis://redis-svc:6379"),
        )
    ],
    ("kvStore.metadata", {"type": "Etcd", "image": "registry.example.com/etcd:v3"}),
    ("kvStore.metadata", {"type": "HTTP"}),
    *[("kvStore.master.external.address", value) for value in ("mc:50051", "mc", "10.0.0.9:50051", "[fd00::1]:50051")],
    # Field case C17.
    *[("kvStore.master.defaultKvLeaseTtl", value) for value in ("60s", "5000ms", "1h", "1m30s")],
    *[("kvStore.master.evictionHighWatermarkRatio", value) for value in (0.95, 1.0, 1)],
    ("kvStore.startupWait", "0s"),
    *[
        ("model.uri", value)
        for value in (
            "hf://gpt2",
            "hf://meta-llama/Llama-3.1-8B-Instruct",
            "pvc://models",
            "pvc://models/llama/3.1",
            "oci://127.0.0.1:5000/disagg/model:dev",
            "oci://registry.example.com/m@sha256:" + "0" * 64,
            "file:///models/llama",
        )
    ],
    ("model", {"uri": "hf://a/b", "name": "meta-llama/Llama-3.1", "revision": "refs/pr/1", "cache": {"size": "100Gi"}}),
    ("engine.args", ["--max-model-len", "4096", "--model-impl=vllm", "--port-range", "--served", "-O3"]),
    ("engine.args", ["--hf-overrides", '{"model_type": "x", "--port": 1}', "--speculative-config.model", "a/b"]),
    ("engine.args", []),
    (
        "engine.env",
        [{"name": "PYTHONHASHSEED", "value": "0"}, {"name": "EMPTY"}, {"name": "MAX_TOKEN", "value": "512"}],
    ),
    ("engine.env", [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}, {"name": "USE_TOKEN", "value": "true"}]),
    (
        "engine.env",
        [
            {"name": "A_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        ],
    ),
    ("decode.rollout", {"maxSurge": "200%", "maxUnavailable": "100%"}),
    ("decode.rollout", {"maxSurge": 0, "maxUnavailable": 1}),
    ("decode.replicas", 0),
    ("decode", {"scaling": {"minReplicas": 0, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}}),
    (
        "decode.scaling",
        {"minReplicas": 0, "keda": {"triggers": [{"type": "cron"}], "cooldownPeriod": 5, "advanced": {}}},
    ),
    ("scaling.ratio", {"min": 0.25, "max": 2}),
    ("decode.parallelism", {"tensor": 8, "pipeline": 2, "nodes": 2}),
    ("decode.kvTransferConfig", {"kv_role": "kv_both", "kv_connector_extra_config": {"load_async": True}}),
    ("decode.template", {"spec": {"containers": [{"name": "engine", "anyNewField": 1}]}}),
    ("decode.resources.claims", [{"name": "gpu", "request": "one"}]),
    ("restart", "2026-11-30T06:00:00Z"),
]


@pytest.mark.parametrize(
    ("field", "value"), SPELLINGS, ids=[f"{i}-{field}-{str(v)[:40]}" for i, (field, v) in enumerate(SPELLINGS)]
)
def test_it_is_accepted_and_kept_as_written(field: str, value: Any, rest: Rest) -> None:
    answer = rest.create(resource(**at(field, value)), "default", dry_run=True)
    assert answer.message == ""
    kept: Any = answer.body["spec"]
    for key in field.split("."):
        kept = kept[key]
    assert _holds(kept, value), f"{value!r} became {kept!r}"


def _holds(kept: Any, written: Any) -> bool:
    """Whether all that was written is there; defaults may have been filled in beside it."""
    if isinstance(written, dict):
        return all(key in kept and _holds(kept[key], value) for key, value in written.items())
    if isinstance(written, list):
        return len(kept) == len(written) and all(map(_holds, kept, written))
    return bool(kept == written and isinstance(kept, bool) == isinstance(written, bool))


def test_a_minimal_resource_gets_every_default(rest: Rest) -> None:
    answer = rest.create(resource(), "default", dry_run=True)
    assert answer.message == ""
    role = {
        "parallelism": {"tensor": 1, "pipeline": 1, "data": 1, "nodes": 1},
        "resources": {},
        "rollout": {"maxSurge": 1, "maxUnavailable": 0},
        "startupTimeout": "1h",
        "terminationGracePeriodSeconds": 60,
        "drainSeconds": 15,
    }
    assert answer.body["spec"] == {
        "model": {"uri": "hf://org/model"},
        "engine": {"device": "cuda", "sharedMemorySize": "1Gi"},
        "prefill": role,
        "decode": role,
        "kvStore": {
            "protocol": "tcp",
            "segmentSize": "4Gi",
            "localBufferSize": "1Gi",
            "startupWait": "60s",
            "master": {"resources": {}},
            "metadata": {"type": "P2PHandshake", "resources": {}},
            "namespacePrefix": "",
        },
        "router": {
            "replicas": 1,
            "service": {"type": "ClusterIP", "port": 8000},
            "resources": {},
            "prefillTimeout": "30s",
            "maxBodySize": "32Mi",
        },
        "networkPolicy": "Enabled",
        "paused": False,
        "progressDeadlineSeconds": 3600,
        "revisionHistoryLimit": 5,
    }, "replicas are not among them: neither replicas nor scaling means 1, and a default would clash with scaling"


@pytest.mark.parametrize("field", ["prefill", "decode", "kvStore", "router", "engine", "kvStore.metadata"])
@pytest.mark.parametrize("empty", [{}, None])
def test_an_empty_part_is_as_one_left_out(field: str, empty: Any, rest: Rest) -> None:
    """Field case C101. `prefill: {}` and `prefill:` (null) are what is left of a part when its last line is removed."""
    plain = rest.create(resource(), "default", dry_run=True)
    answer = rest.create(resource(**at(field, empty)), "default", dry_run=True)
    assert answer.message == ""
    assert answer.body["spec"] == plain.body["spec"]


def test_defaults_fill_what_a_given_part_leaves_out(rest: Rest) -> None:
    spec = rest.create(resource(decode={"rollout": {"maxSurge": 2}}), "default", dry_run=True).body["spec"]
    assert spec["decode"]["rollout"] == {"maxSurge": 2, "maxUnavailable": 0}
    assert spec["decode"]["drainSeconds"] == 15


def test_status_is_written_apart_from_spec(rest: Rest, namespace: str) -> None:
    created = rest.create({**resource(), "status": {"model": "forged"}}, namespace).body
    assert "model" not in created.get("status", {})
    path = f"{RESOURCES.format(namespace=namespace)}/llama"
    status = {**created, "status": {"model": "llama"}, "spec": {"model": {"uri": "hf://other/model"}}}
    written = rest.ask("PUT", f"{path}/status", status).body
    assert (written["status"]["model"], written["spec"]["model"]["uri"]) == ("llama", "hf://org/model")
    assert written["metadata"]["generation"] == 1
    changed = rest.update({**written, "spec": {**written["spec"], "restart": "1"}, "status": {}}, namespace).body
    assert (changed["metadata"]["generation"], changed["status"]["model"]) == (2, "llama")


def test_a_changed_resource_is_judged_too(rest: Rest, namespace: str) -> None:
    created = rest.create(resource(), namespace).body
    created["spec"]["decode"]["replicas"] = 2
    created["spec"]["decode"]["scaling"] = {}
    answer = rest.update(created, namespace)
    assert (answer.code, "set replicas or scaling, not both" in answer.message) == (422, True)
