"""What holds for every resource that can be built, whatever is in it."""

import json
from typing import Any

import pytest
from disagg_operator.build.desired import build_desired
from disagg_operator.build.inputs import Counts, Desired
from disagg_operator.build.problems import find_problems
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.build.rubric import RULES
from unit.build.samples import FACTS, PINS, build, make

NAMES = st.from_regex(r"[a-z][-a-z0-9]{0,43}[a-z0-9]", fullmatch=True)
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=20)
SIZES = st.sampled_from(["64Mi", "1Gi", "4GB", 1 << 30, "10Gi"])
ENV_NAMES = st.from_regex(r"X_[A-Z]{1,8}Z", fullmatch=True)
ENV = st.dictionaries(ENV_NAMES, WORDS, max_size=3).map(lambda d: [{"name": k, "value": v} for k, v in d.items()])
FLAGS = st.lists(st.sampled_from(["--max-num-seqs=4", "--enforce-eager", "--seed=-1", "--no-stats"]), max_size=3)
KV_ARGS = st.lists(st.sampled_from(["--dtype=float16", "--block-size=32", "--max-model-len=4096"]), max_size=3)
TEMPLATES = st.sampled_from(
    [
        {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}},
        {"spec": {"nodeSelector": {"pool": "gpu"}, "futureField": {"deep": [1, {"x": True}]}}},
        {"spec": {"containers": [{"name": "engine", "env": [{"name": "Y", "value": "1"}]}]}},
        {"spec": {"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]}},
    ]
)


@st.composite
def roles(draw: st.DrawFn, tensor: int) -> dict[str, Any]:
    role: dict[str, Any] = {"parallelism": {"tensor": tensor, "data": draw(st.integers(1, 3))}}
    role |= draw(st.fixed_dictionaries({}, optional={"replicas": st.integers(0, 9), "env": ENV, "args": FLAGS}))
    role |= draw(st.fixed_dictionaries({}, optional={"template": TEMPLATES, "drainSeconds": st.integers(0, 50)}))
    return role


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    tensor = draw(st.sampled_from([1, 2, 8]))
    uri = draw(st.sampled_from(["hf://org/m", "pvc://claim/a/b", "oci://r.example/m:1", "file:///m"]))
    store: dict[str, Any] = {"segmentSize": draw(SIZES), "localBufferSize": draw(SIZES)}
    store["metadata"] = draw(st.sampled_from([{}, {"type": "HTTP"}, {"type": "Etcd", "image": "e:1"}]))
    store |= draw(st.sampled_from([{}, {"master": {"external": {"address": "mc.ops.svc:50051"}}}]))
    store |= draw(st.sampled_from([{}, {"config": {"tenant_id": "t", "unknown_key": 1}}]))
    return {
        "model": {"uri": uri},
        "engine": {"device": draw(st.sampled_from(["cuda", "cpu"])), "args": draw(KV_ARGS), "env": draw(ENV)},
        "prefill": draw(roles(tensor)),
        "decode": draw(roles(tensor)),
        "kvStore": store,
        "router": {"replicas": draw(st.integers(0, 3))},
    }


def shuffled(value: Any, order: Any) -> Any:
    """The same data with maps in another order."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(item, order) for item in value] if isinstance(value, list) else value


@given(specs(), st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(spec: dict[str, Any], order: Any) -> None:
    assert build(make(spec)) == build(make(shuffled(spec, order)))


@given(specs(), NAMES)
def test_children_pass_the_rubric(spec: dict[str, Any], name: str) -> None:
    children = build(make(spec, name=name)).children
    for rule in RULES:
        if rule.__name__ != "images_are_fixed":
            assert list(rule(children)) == [], rule.__name__


@given(specs(), st.integers(0, 9), st.integers(0, 9))
def test_replicas_change_no_pod(spec: dict[str, Any], prefill: int, decode: int) -> None:
    before = build(make(spec))
    counts = {"prefill": prefill, "decode": decode}
    scaled = spec | {role: {**spec[role], "replicas": count} for role, count in counts.items()}
    after = build(make(scaled))
    assert (before.kv_revision, before.revisions) == (after.kv_revision, after.revisions)
    assert pod_templates(before) == pod_templates(after)


@given(specs(), st.sampled_from(["prefill", "decode"]))
def test_one_roles_environment_moves_its_revision_alone(spec: dict[str, Any], role: str) -> None:
    before = build(make(spec))
    entries = [*spec[role].get("env", []), {"name": "W_NEW", "value": "1"}]
    after = build(make({**spec, role: {**spec[role], "env": entries}}))
    assert before.kv_revision == after.kv_revision
    assert {r for r in before.revisions if before.revisions[r] != after.revisions[r]} == {role}


def pod_templates(desired: Desired) -> list[Any]:
    return [c["spec"]["template"] for c in desired.children if c["kind"] == "Deployment"]


SECRET = "hf_" + "SeCrEt" * 6
ENGINE_WITH_SECRET = {"name": "engine", "env": [{"name": "A", "value": SECRET}]}


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"env": [{"name": "HF_TOKEN", "value": SECRET}]}},
        {"engine": {"env": [{"name": "HARMLESS", "value": SECRET}]}},
        {"engine": {"env": [{"name": "DB_PASSWORD", "value": SECRET}]}},
        {"engine": {"args": ["--hf-token", SECRET]}},
        {"engine": {"args": ["--hf-overrides", SECRET]}},
        {"kvStore": {"config": {"metadata_server_auth": SECRET}}},
        {"kvStore": {"config": {"metadata_server": f"redis://:{SECRET}@r:6379"}}},
        {"kvStore": {"config": {"any_key": SECRET}}},
        {"model": {"uri": "hf://o/m", "tokenSecretRef": {"name": SECRET, "key": "k"}}},
        {"decode": {"template": {"spec": {"containers": [ENGINE_WITH_SECRET]}}}},
        {"router": {"template": {"metadata": {"annotations": {"a": SECRET}}}}},
        {"decode": {"kvTransferConfig": {"kv_connector_extra_config": {"token": SECRET}}}},
    ],
)
def test_a_secret_in_the_wrong_place_reaches_neither_manifests_nor_messages(spec: dict[str, Any]) -> None:
    """Field cases C05 and C92."""
    resource = make(spec)
    found = find_problems(resource, PINS, FACTS)
    assert SECRET not in " ".join(str(problem) for problem in found)
    if not found:
        desired = build_desired(resource, PINS, FACTS, Counts())
        assert SECRET not in json.dumps(desired.children)
        assert SECRET not in " ".join(desired.hints)


KEYS = st.sampled_from(
    ["metadata", "spec", "labels", "containers", "initContainers", "volumes", "env", "ports", "name", "resources"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | WORDS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, JSON, max_size=3), st.dictionaries(WORDS, JSON, max_size=3))
@settings(max_examples=300)
def test_any_raw_field_is_judged_without_an_exception(template: dict[str, Any], raw: dict[str, Any]) -> None:
    """Raw fields have no schema: whatever is in them is a problem told, or is built."""
    spec = {"decode": {"template": template, "kvTransferConfig": raw}, "kvStore": {"config": raw}}
    resource = make(spec)
    if not find_problems(resource, PINS, FACTS):
        build_desired(resource, PINS, FACTS, Counts())
