"""What the API server refuses, each with the path and the remedy. Field cases are told by their numbers."""

from typing import Any

import pytest
from api.manifests import at, resource
from api.rest import Rest

HUB_TOKEN = "hf_" + "a1B2" * 9

# Path that the message names, the spec's field, its value, and words of the remedy.
Case = tuple[str, str, Any, str]

SIZE = "not a size; write a quantity such as 4Gi, or bytes as an integer"
SIZES: list[Case] = [
    # Field case C07: spellings that mean nothing, or not the same to all.
    *[
        ("spec.kvStore.segmentSize", "kvStore.segmentSize", value, SIZE)
        for value in ("", "abc", "-1", -1, "0x10", "1g", "4g", "4m", "1e", "4 Gi B", "4Gib/s", "Gi", "1.5.2Gi")
    ],
    *[("spec.kvStore.segmentSize", "kvStore.segmentSize", value, "must be of type") for value in (True, ["4Gi"])],
    ("spec.kvStore.segmentSize", "kvStore.segmentSize", 1073741824.0, "either a string or integer"),
    *[
        ("spec.kvStore.segmentSize", "kvStore.segmentSize", value, "write a size from 16Mi to 16Ti")
        for value in ("1", 4, "15Mi", "15.9mb", "17Ti", "1e15", "900 TB", 2**60)
    ],
    ("spec.kvStore.segmentSize", "kvStore.segmentSize", "0", "write at least 16Mi"),
    ("spec.kvStore.segmentSize", "kvStore.segmentSize", "0Gi", "write at least 16Mi"),
    ("spec.kvStore.localBufferSize", "kvStore.localBufferSize", "0", "from 1Mi to 1Ti"),
    ("spec.kvStore.localBufferSize", "kvStore.localBufferSize", "4g", SIZE),
    ("spec.router.maxBodySize", "router.maxBodySize", 1024, "from 1Mi to 1Gi"),
    ("spec.engine.sharedMemorySize", "engine.sharedMemorySize", "4GB", "such as 500m, 4 or 16Gi"),
    ("spec.engine.sharedMemorySize", "engine.sharedMemorySize", "-1Gi", "such as 500m, 4 or 16Gi"),
    ("spec.model.cache.size", "model", {"uri": "hf://a/b", "cache": {"size": "lots"}}, "such as 500m, 4 or 16Gi"),
    ("spec.decode.resources.limits[memory]", "decode.resources.limits", {"memory": "96GB"}, "such as 500m, 4 or 16Gi"),
    ("spec.decode.resources.requests[cpu]", "decode.resources.requests", {"cpu": "-2"}, "such as 500m, 4 or 16Gi"),
]

MODELS: list[Case] = [
    ("spec.model.uri", "model.uri", "s3://bucket/model", "unknown model source; write hf://org/model"),
    ("spec.model.uri", "model.uri", "meta-llama/Llama-3.1-8B", "unknown model source; write hf://org/model"),
    ("spec.model.uri", "model.uri", "/models/llama", "file:///path/in/the/image"),
    ("spec.model.uri", "model.uri", "", "at least 1 chars"),
    ("spec.model.uri", "model.uri", "hf://", "write hf://org/model"),
    ("spec.model.uri", "model.uri", "hf://org/model/extra", "write hf://org/model"),
    ("spec.model.uri", "model.uri", "hf://org/model@main", "goes into spec.model.revision"),
    ("spec.model.uri", "model.uri", "hf://org/model ", "write hf://org/model"),
    ("spec.model.uri", "model.uri", "pvc://My_Claim/x", "write pvc://claim/path"),
    ("spec.model.uri", "model.uri", "pvc:///x", "write pvc://claim/path"),
    ("spec.model.uri", "model.uri", "pvc://claim/../x", "without '..'"),
    ("spec.model.uri", "model.uri", "oci://", "write oci:// and an image"),
    ("spec.model.uri", "model.uri", "file://models/llama", "an absolute path"),
    ("spec.model.uri", "model.uri", "file:///", "an absolute path"),
    ("spec.model.revision", "model", {"uri": "pvc://c/m", "revision": "main"}, "model.revision goes with hf://"),
    ("spec.model.revision", "model", {"uri": "hf://a/b", "revision": "--trust-remote-code"}, "begin with a letter"),
    ("spec.model.name", "model", {"uri": "hf://a/b", "name": "--api-key"}, "begin with a letter or digit"),
    ("spec.model.cache", "model", {"uri": "oci://a/b", "cache": {}}, "keeps hf:// downloads"),
    ("spec.model.cache", "model", {"uri": "hf://a/b", "cache": {"claimName": "c"}}, "with EmptyDir remove it"),
    ("spec.model.cache", "model", {"uri": "hf://a/b", "cache": {"type": "PersistentVolumeClaim"}}, "set claimName"),
    ("spec.model.uri", "model", {}, "Required value"),
]

COUNTS: list[Case] = [
    # Field case C101.
    ("spec.prefill", "prefill", {"replicas": 1, "scaling": {}}, "set replicas or scaling, not both"),
    ("spec.decode", "decode", {"replicas": 0, "scaling": {"maxReplicas": 3}}, "set replicas or scaling, not both"),
    ("spec.decode.replicas", "decode.replicas", -1, "greater than or equal to 0"),
    ("spec.decode.replicas", "decode.replicas", "2", "must be of type integer"),
    ("spec.decode.scaling.minReplicas", "decode.scaling", {"minReplicas": 5, "maxReplicas": 2}, "lower it"),
    ("spec.decode.scaling", "decode.scaling", {"metrics": [{"type": "Resource"}]}, "maxReplicas"),
    ("spec.decode.scaling", "decode.scaling", {"behavior": {}}, "behavior goes with metrics"),
    (
        "spec.decode.scaling",
        "decode.scaling",
        {"maxReplicas": 2, "metrics": [{"type": "External"}], "keda": {"triggers": [{}]}},
        "set metrics or keda, not both",
    ),
    ("spec.decode.scaling.keda.triggers", "decode.scaling.keda", {"pollingInterval": 5}, "Required value"),
    ("spec.decode.scaling.keda.triggers", "decode.scaling.keda", {"triggers": []}, "at least 1 items"),
    ("spec.scaling.ratio", "scaling.ratio", {}, "set min, max or both"),
    ("spec.scaling.ratio.min", "scaling.ratio", {"min": 2, "max": 0.5}, "lower it"),
    ("spec.scaling.ratio.max", "scaling.ratio", {"max": 0}, "greater than 0"),
    ("spec.decode.rollout", "decode.rollout", {"maxSurge": 0, "maxUnavailable": "0%"}, "cannot both be 0"),
    ("spec.decode.rollout.maxSurge", "decode.rollout", {"maxSurge": "some"}, "such as 25%"),
    ("spec.decode.rollout.maxSurge", "decode.rollout", {"maxSurge": -1}, "such as 25%"),
    ("spec.decode.rollout.maxUnavailable", "decode.rollout", {"maxUnavailable": "150%"}, "at most 100%"),
    ("spec.decode.parallelism", "decode.parallelism", {"tensor": 2, "nodes": 3}, "multiple of nodes"),
    ("spec.decode.parallelism.tensor", "decode.parallelism", {"tensor": 0}, "greater than or equal to 1"),
    ("spec.decode.drainSeconds", "decode", {"drainSeconds": 60}, "must be below terminationGracePeriodSeconds"),
    ("spec.decode.drainSeconds", "decode", {"terminationGracePeriodSeconds": 10}, "the engine needs the rest"),
    ("spec.progressDeadlineSeconds", "progressDeadlineSeconds", 1, "greater than or equal to 60"),
]

DURATION = "not a duration; write such as 90s"
DURATIONS: list[Case] = [
    # Field case C17.
    ("spec.kvStore.master.defaultKvLeaseTtl", "kvStore.master.defaultKvLeaseTtl", "abc", DURATION),
    ("spec.kvStore.master.defaultKvLeaseTtl", "kvStore.master.defaultKvLeaseTtl", "5000", DURATION),
    ("spec.kvStore.master.defaultKvLeaseTtl", "kvStore.master.defaultKvLeaseTtl", 5000, "must be of type string"),
    ("spec.kvStore.master.defaultKvLeaseTtl", "kvStore.master.defaultKvLeaseTtl", "1ms", "from 10ms to 24h"),
    ("spec.kvStore.master.evictionHighWatermarkRatio", "kvStore.master.evictionHighWatermarkRatio", 1.5, "equal to 1"),
    ("spec.kvStore.master.evictionHighWatermarkRatio", "kvStore.master.evictionHighWatermarkRatio", -0.1, "than 0"),
    ("spec.kvStore.master.evictionRatio", "kvStore.master.evictionRatio", "0.05", "must be of type number"),
    ("spec.prefill.startupTimeout", "prefill.startupTimeout", "5 minutes", DURATION),
    ("spec.prefill.startupTimeout", "prefill.startupTimeout", "1s", "from 10s to 24h"),
    ("spec.prefill.startupTimeout", "prefill.startupTimeout", "999999h999999h999999h999999h", ""),
    ("spec.kvStore.startupWait", "kvStore.startupWait", "-5s", DURATION),
    ("spec.router.prefillTimeout", "router.prefillTimeout", "0s", "from 100ms to 1h"),
]


def _flag(role: str, args: list[str], remedy: str) -> Case:
    return f"spec.{role}.args", f"{role}.args", args, remedy


FLAGS: list[Case] = [
    # Field case C16.
    _flag("engine", ["--tensor-parallel-size", "4"], "set spec.<role>.parallelism.tensor"),
    _flag("prefill", ["--tensor-parallel-size=4"], "owns --tensor-parallel-size"),
    _flag("decode", ["--tensor_parallel_size", "4"], "owns --tensor-parallel-size; set spec.<role>.parallelism.tensor"),
    _flag("decode", ["-tp=4"], "owns -tp; set spec.<role>.parallelism.tensor"),
    _flag("decode", ["--enforce-eager", "-pp", "2"], "owns -pp; set spec.<role>.parallelism.pipeline"),
    _flag("decode", ["--model", "x"], "set spec.model.uri"),
    _flag("decode", ["--served-model-name=x"], "set spec.model.name"),
    _flag("decode", ["--port", "9000"], "remove it: the engine listens on port 8000"),
    _flag("decode", ["--kv-transfer-config", "{}"], "set spec.<role>.kvTransferConfig"),
    _flag("decode", ["--kv-transfer-config.kv_role", "kv_both"], "set spec.<role>.kvTransferConfig"),
    _flag("decode", ["--api-key=k"], "set spec.apiKeySecretRef"),
    _flag("decode", ["--ssl-keyfile", "k"], "end TLS in front of the router"),
    _flag("decode", ["--config", "/etc/vllm.yaml"], "write its flags into args"),
    _flag("decode", ["Qwen/Qwen2.5-7B", "--enforce-eager"], "the first one must begin with '-'"),
    _flag("decode", ["--hf-token", HUB_TOKEN], "set spec.model.tokenSecretRef"),
    _flag("decode", ["--hf-overrides", f"x{HUB_TOKEN}"], "a token of the model hub"),
    _flag("decode", ["--a"] * 129, "at most 128 items"),
    _flag("decode", ["--a" + "x" * 1024], "may not be more than 1024"),
]


def _env(remedy: str, *entries: dict[str, Any], where: str = "spec.engine.env[0]") -> Case:
    return where, "engine.env", list(entries), remedy


ENVIRONMENT: list[Case] = [
    # Field case C56.
    _env("every one has 0", {"name": "PYTHONHASHSEED", "value": "random"}),
    _env("every one has 0", {"name": "PYTHONHASHSEED", "value": "1"}),
    _env("sets MOONCAKE_CONFIG_PATH; remove it", {"name": "MOONCAKE_CONFIG_PATH", "value": "/x"}),
    _env("sets VLLM_HOST_IP; remove it", {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}),
    _env("set spec.apiKeySecretRef", {"name": "VLLM_API_KEY", "value": "x"}),
    # Field case C92.
    _env("write valueFrom.secretKeyRef", {"name": "HF_TOKEN", "value": HUB_TOKEN}),
    _env("write valueFrom.secretKeyRef", {"name": "AWS_SECRET_ACCESS_KEY", "value": "wJalrXUtnFEMI"}),
    _env("write valueFrom.secretKeyRef", {"name": "NOTE", "value": f"see {HUB_TOKEN}"}),
    _env("value or valueFrom, not both", {"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}),
    _env("exactly one of secretKeyRef", {"name": "A", "valueFrom": {}}),
    _env('unknown field "spec.engine.env[0].valueFrom.secretRef"', {"name": "A", "valueFrom": {"secretRef": {}}}),
    _env("Required value", {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}),
    _env("Duplicate value", {"name": "A", "value": "1"}, {"name": "A", "value": "2"}, where="spec.engine.env[1]"),
    _env("cannot hold '='", {"name": "A=B", "value": "1"}),
]

STORE: list[Case] = [
    # Field case C01: modes and segments.
    ("spec.kvStore.segmentSize", "kvStore.config", {"mode": "standalone-store"}, "set segmentSize to 0"),
    (
        "spec.kvStore.segmentSize",
        "kvStore",
        {"segmentSize": "80GB", "config": {"mode": "standalone-store"}},
        "set segmentSize to 0",
    ),
    (
        "spec.kvStore.segmentSize",
        "kvStore.config",
        {"mode": "standalone-store", "global_segment_size": "80GB"},
        "set segmentSize to 0",
    ),
    (
        "spec.kvStore.config.mode",
        "kvStore.config",
        {"mode": "shared"},
        'supported values: "embedded", "standalone-store"',
    ),
    # Field case C13: protocols.
    *[
        ("spec.kvStore.protocol", "kvStore.protocol", value, 'supported values: "tcp", "rdma", "efa", "ascend"')
        for value in ("RDMA", " tcp ", "infiniband", "")
    ],
    ("spec.kvStore.devices", "kvStore.devices", "mlx5_0,mlx5_1", "must be of type array"),
    ("spec.kvStore.devices[0]", "kvStore.devices", ["mlx5_0,mlx5_1"], "such as mlx5_0"),
    ("spec.kvStore.rdma", "kvStore.rdma", {"resourceName": "rdma/hca"}, "set protocol to rdma, efa or ascend"),
    ("spec.kvStore.interface", "kvStore.interface", "net 1", "such as net1"),
    ("spec.kvStore.namespacePrefix", "kvStore.namespacePrefix", "a/b", "use letters"),
]


def _metadata(kind: str, address: str, remedy: str, where: str = ".external.address") -> Case:
    value = {"type": kind, "external": {"address": address}}
    return f"spec.kvStore.metadata{where}", "kvStore.metadata", value, remedy


ADDRESSES: list[Case] = [
    # Field case C10.
    _metadata("HTTP", "127.0.0.1:2379", "other pods cannot reach that host"),
    _metadata("HTTP", "http://0.0.0.0:15002/metadata", "other pods cannot reach that host"),
    _metadata("HTTP", "http://localhost:8080/metadata", "other pods cannot reach that host"),
    _metadata("HTTP", "http://[::1]:8080/metadata", "other pods cannot reach that host"),
    _metadata("HTTP", "", "at least 1 chars"),
    _metadata("HTTP", "http://mc:port/metadata", "not an address; write http://host:8080/metadata"),
    _metadata("HTTP", "redis://mc:6379", "with type HTTP write http://host:8080/metadata", ".external"),
    _metadata("HTTP", "p2phandshake", "or set the type that it is", ".external"),
    _metadata("Etcd", "mc:2379", "with type Etcd write etcd://host:2379", ".external"),
    _metadata("Redis", "http://mc:6379", "with type Redis write redis://host:6379", ".external"),
    _metadata("Redis", "redis://:s3cret@mc:6379", "credentials must not stand here"),
    _metadata("P2PHandshake", "http://mc:8080", "remove external", ""),
    ("spec.kvStore.metadata.type", "kvStore.metadata.type", "p2phandshake", '"HTTP", "Etcd", "Redis", "P2PHandshake"'),
    ("spec.kvStore.metadata", "kvStore.metadata", {"type": "Redis"}, "set external.address to redis://host:port"),
    ("spec.kvStore.metadata", "kvStore.metadata", {"type": "Etcd"}, "set external.address to an etcd that runs"),
    ("spec.kvStore.metadata", "kvStore.metadata", {"type": "HTTP", "image": "a/b:1"}, "with type Etcd alone"),
    ("spec.kvStore.master.external.address", "kvStore.master.external.address", "http://mc:50051", "such as mc.ops"),
    ("spec.kvStore.master.external.address", "kvStore.master.external.address", "localhost:50051", "cannot reach"),
    (
        "spec.kvStore.master.external",
        "kvStore.master",
        {"external": {"address": "mc:50051"}, "evictionRatio": 0.1},
        "no master is made where external is set",
    ),
]

REFERENCES: list[Case] = [
    # Field case C92: a token pasted in place of the reference is not told again by the message.
    (
        "spec.model.tokenSecretRef.name",
        "model",
        {"uri": "hf://a/b", "tokenSecretRef": {"name": HUB_TOKEN, "key": "k"}},
        "not the name of an object",
    ),
    (
        "spec.model.tokenSecretRef.key",
        "model",
        {"uri": "hf://a/b", "tokenSecretRef": {"name": "n", "key": f"token={HUB_TOKEN}"}},
        "not a key of a Secret",
    ),
    ("spec.model.tokenSecretRef", "model", {"uri": "hf://a/b", "tokenSecretRef": HUB_TOKEN}, "must be of type object"),
    ("spec.apiKeySecretRef.key", "apiKeySecretRef", {"name": "a", "key": "a/b"}, "not a key of a Secret"),
    ("spec.apiKeySecretRef.key", "apiKeySecretRef", {"name": "a"}, "Required value"),
    ("spec.engine.imagePullSecrets[0].name", "engine.imagePullSecrets", [{"name": "A"}], "not the name of an object"),
    ("spec.engine.image", "engine.image", "https://registry.example.com/a", "not an image; write such as"),
    ("spec.engine.image", "engine.image", "a image:1", "not an image; write such as"),
    ("spec.engine.device", "engine.device", "gpu", 'supported values: "cuda", "cpu"'),
    # Field case C14.
    ("spec.prefill.kvTransferConfig", "prefill.kvTransferConfig", {"kv_role": "kv_consumer"}, "kv_producer or kv_both"),
    ("spec.decode.kvTransferConfig", "decode.kvTransferConfig", {"kv_role": "kv_producer"}, "kv_consumer or kv_both"),
    ("spec.decode.kvTransferConfig.kv_role", "decode.kvTransferConfig", {"kv_role": "x"}, "supported values"),
    ("spec.decode.resources.limits", "decode.resources.limits", {"gpu": 1}, "such as nvidia.com/gpu"),
    ("spec.decode.resources.requests", "decode.resources.requests", {"Memory": "1Gi"}, "write cpu, memory"),
    ("spec.router.service.annotations", "router.service.annotations", {"a b": "c"}, "such as example.com/name"),
    ("spec.router.service.type", "router.service.type", "None", 'supported values: "ClusterIP"'),
    ("spec.router.service.port", "router.service.port", 70000, "less than or equal to 65535"),
]

ALL = [
    *SIZES,
    *MODELS,
    *COUNTS,
    *DURATIONS,
    *FLAGS,
    *ENVIRONMENT,
    *STORE,
    *ADDRESSES,
    *REFERENCES,
]


@pytest.mark.parametrize(
    ("path", "field", "value", "remedy"),
    ALL,
    ids=[f"{i}-{field}-{str(v)[:40]}" for i, (_, field, v, _) in enumerate(ALL)],
)
def test_it_is_refused_with_the_path_and_the_remedy(path: str, field: str, value: Any, remedy: str, rest: Rest) -> None:
    answer = rest.create(resource(**at(field, value)), "default", dry_run=True)
    assert answer.code in {400, 422}, f"accepted: {field}: {value!r}"
    assert path in answer.message
    assert remedy in answer.message
    assert HUB_TOKEN not in answer.message, "a message must not tell a secret"
    assert "s3cret" not in answer.message
    assert "evaluation" not in answer.message, "a rule failed instead of judging"
    assert "no such" not in answer.message, "a rule failed instead of judging"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        # Field case C19.
        ("a" * 46, "at most 45 characters: children are named after it; try " + "a" * 45),
        ("a" * 52, "try " + "a" * 45),
        ("a" * 58, "try " + "a" * 45),
        ("a" * 63, "try " + "a" * 45),
        ("a" * 44 + "-bcd", "try " + "a" * 44),
        ("qwen2.5-7b", "try qwen2-5-7b"),
        ("01-yi", "try m-01-yi"),
        ("x", "at least two characters; try x-model"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_with_a_suggestion(name: str, told: str, rest: Rest) -> None:
    answer = rest.create(resource(name), "default", dry_run=True)
    assert answer.code == 422
    assert "metadata.name" in answer.message
    assert told in answer.message
    suggestion = answer.message.rpartition("try ")[2]
    assert rest.create(resource(suggestion), "default", dry_run=True).code == 201, f"suggested {suggestion!r}"


@pytest.mark.parametrize("name", ["ab", "a" * 45, "qwen2-5-7b", "a1"])
def test_a_name_that_fits_is_accepted(name: str, rest: Rest) -> None:
    assert rest.create(resource(name), "default", dry_run=True).code == 201


def test_a_generated_name_is_judged_as_any_other(rest: Rest) -> None:
    body = resource()
    body["metadata"] = {"generateName": "llama-"}
    assert rest.create(body, "default", dry_run=True).code == 201
    body["metadata"] = {"generateName": "1-"}
    assert rest.create(body, "default", dry_run=True).code == 422


def test_every_fault_is_told_at_once(rest: Rest) -> None:
    body = resource(
        model={"uri": "s3://x"}, decode={"replicas": 1, "scaling": {}, "args": ["--port=1"]}, kvStore={"devices": [" "]}
    )
    message = rest.create(body, "default", dry_run=True).message
    for path in ("spec.model.uri", "spec.decode:", "spec.decode.args", "spec.kvStore.devices[0]"):
        assert path in message


def test_without_spec_or_model_it_is_refused(rest: Rest) -> None:
    body = resource()
    del body["spec"]
    answer = rest.create(body, "default", dry_run=True)
    assert answer.code == 422
    assert "spec: Required value" in answer.message
    body["spec"] = {}
    assert "spec.model: Required value" in rest.create(body, "default", dry_run=True).message
