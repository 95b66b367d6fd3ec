"""What moves which digest: KV changes move both roles, a role's own changes move that role, the rest moves nothing."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from disagg_operator.build.digests import digest
from disagg_operator.build.inputs import ClusterFacts
from unit.build.samples import FACTS, PINS, build, child, make

SPEC: dict[str, Any] = {
    "model": {"uri": "hf://org/model", "revision": "main"},
    "engine": {"args": ["--dtype", "bfloat16"]},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
}


class Digests(NamedTuple):
    kv: str
    prefill: str
    decode: str


def digests(spec: dict[str, Any] | None = None, **metadata: Any) -> Digests:
    desired = build(make({**SPEC, **(spec or {})}, **metadata))
    return Digests(desired.kv_revision, desired.revisions["prefill"], desired.revisions["decode"])


def moved(spec: dict[str, Any], **metadata: Any) -> set[str]:
    before, after = digests(), digests(spec, **metadata)
    return {field for field in Digests._fields if getattr(before, field) != getattr(after, field)}


ALL = {"kv", "prefill", "decode"}
ROLES = {"prefill", "decode"}


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"uri": "hf://org/other", "revision": "main"}},
        {"model": {"uri": "hf://org/model", "revision": "v2"}},
        {"engine": {"args": ["--dtype", "float16"]}},
        {"engine": {"args": ["--dtype", "bfloat16", "--block-size=32"]}},
        {"engine": {"args": ["--dtype", "bfloat16", "-q", "fp8"]}},
        {"engine": {"args": ["--dtype", "bfloat16", "--kv_cache_dtype", "fp8"]}},
        {"engine": {"args": ["--dtype", "bfloat16", "--max-model-len", "4096"]}},
        {"engine": {"args": ["--dtype", "bfloat16", "--hf-overrides.rope_theta", "1e6"]}},
        {"engine": {"args": ["--dtype", "bfloat16"], "env": [{"name": "VLLM_KV_CACHE_LAYOUT", "value": "HND"}]}},
        {"decode": {"parallelism": {"tensor": 2}}},
        {"prefill": {"parallelism": {"pipeline": 2}}},
    ],
)
def test_what_decides_kv_moves_both_roles(spec: dict[str, Any]) -> None:
    """Field cases C58 and C59: new bytes under old keys would be read as the old ones."""
    assert moved(spec) == ALL


@pytest.mark.parametrize(
    "role_spec",
    [
        {"env": [{"name": "A", "value": "1"}]},
        {"args": ["--max-num-seqs", "4"]},
        {"image": "mine:2"},
        {"resources": {"requests": {"cpu": 8}}},
        {"template": {"spec": {"nodeSelector": {"a": "b"}}}},
        {"startupTimeout": "2h"},
        {"parallelism": {"data": 2}},
        {"kvTransferConfig": {"kv_load_failure_policy": "fail"}},
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_roles_own_change_moves_that_role_alone(role: str, role_spec: dict[str, Any]) -> None:
    """Field case C32."""
    assert moved({role: role_spec}) == {role}


@pytest.mark.parametrize(
    "spec",
    [
        {"kvStore": {"segmentSize": "8Gi"}},
        {"kvStore": {"namespacePrefix": "x"}},
        {"kvStore": {"metadata": {"type": "HTTP"}}},
        {"kvStore": {"config": {"tenant_id": "blue"}}},
        {"engine": {"args": ["--dtype", "bfloat16"], "sharedMemorySize": "2Gi"}},
        {"restart": "now"},
    ],
)
def test_what_both_read_moves_both_but_keeps_kv(spec: dict[str, Any]) -> None:
    assert moved(spec) == ROLES


@pytest.mark.parametrize(
    "spec",
    [
        {"decode": {"replicas": 5}},
        {"prefill": {"replicas": 0}},
        {"decode": {"rollout": {"maxSurge": 2}}},
        {"router": {"replicas": 3, "prefillTimeout": "5s"}},
        {"kvStore": {"master": {"evictionRatio": 0.1}}},
        {"networkPolicy": "Disabled"},
        {"progressDeadlineSeconds": 600},
        {"apiKeySecretRef": {"name": "keys", "key": "k"}},
        {"engine": {"args": ["--dtype=float16", "--dtype=bfloat16"], "device": "cuda"}},
    ],
)
def test_what_engines_do_not_read_moves_no_digest(spec: dict[str, Any]) -> None:
    if "engine" in spec:  # the same value in another spelling: the pods' arguments differ, their KV does not
        assert moved(spec) == ROLES
    else:
        assert moved(spec) == set()


def test_labels_annotations_and_generation_move_nothing() -> None:
    assert moved({}, labels={"a": "b"}, annotations={"c": "d"}, generation=7) == set()


def test_a_file_model_is_as_new_as_its_image() -> None:
    """The weights are inside, so another image may hold other weights."""

    def kv(image: str) -> str:
        return digests({"model": {"uri": "file:///model"}, "decode": {"image": image}}).kv

    assert kv("a:1") != kv("a:2")
    assert digests({"decode": {"image": "a:1"}}).kv == digests({"decode": {"image": "a:2"}}).kv


def test_pins_move_engines_and_facts_do_not() -> None:
    """An operator's upgrade changes facts at most; images are recorded and stay until a user changes something."""
    resource = make(SPEC)
    before = build(resource)
    other = build(resource, ClusterFacts(cluster_domain="k8s.example", operator_namespace="x"))
    assert other.revisions == before.revisions
    newer = replace(PINS, images=replace(PINS.images, engine_cuda="registry.example/disagg/engine-cuda:2.0.0"))
    upgraded = build(resource, FACTS, newer)
    assert upgraded.kv_revision == before.kv_revision
    assert upgraded.revisions["prefill"] != before.revisions["prefill"]


def test_both_roles_carry_one_kv_revision_and_their_own_revision() -> None:
    desired = build(make(SPEC))
    for role in ("prefill", "decode"):
        labels = child(desired, "Deployment", f"llama-{role}")["spec"]["template"]["metadata"]["labels"]
        assert labels["inference.disagg.io/kv-revision"] == desired.kv_revision
        assert labels["inference.disagg.io/revision"] == desired.revisions[role]


def test_digests_stay_what_they_are() -> None:
    """A change here empties the cache and restarts the engines of every resource at the operator's upgrade."""
    assert digest({"b": [1, "x"], "a": None}) == "c22cb7b035"
    assert digests().kv == "b8e14ac465"
