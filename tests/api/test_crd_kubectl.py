"""What kubectl makes of the resource: explain, get, wait, scale, and two managers of one object."""

import json
from typing import Any

import pytest
import yaml
from api.conftest import CRD_FILE
from api.manifests import API_VERSION, KIND, Json, resource
from api.rest import RESOURCES, Rest
from demo.kubectl import Kubectl, KubectlError


def _fields(schema: Json, path: str) -> list[str]:
    found = []
    for name, child in schema.get("properties", {}).items():
        found += [f"{path}.{name}", *_fields(child, f"{path}.{name}")]
    return [*found, *_fields(schema.get("items", {}), path)] if "items" in schema else found


def _schema(part: str) -> Json:
    crd: Json = yaml.safe_load(CRD_FILE.read_text())
    schema: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    return schema


def test_explain_has_a_sentence_for_every_field(kubectl: Kubectl) -> None:
    for part in ("spec", "status"):
        text = kubectl.run("explain", f"dinf.{part}", "--recursive")
        leaves = {path.rpartition(".")[2] for path in _fields(_schema(part), part)}
        assert leaves <= {line.split("\t")[0].strip() for line in text.splitlines()}
    openapi = json.loads(kubectl.run("get", "--raw", "/openapi/v3/apis/inference.disagg.io/v1alpha1"))
    published = openapi["components"]["schemas"]["io.disagg.inference.v1alpha1.DisaggregatedInference"]
    without = [
        path for part in ("spec", "status") for path in _undescribed(published["properties"][part], f"dinf.{part}")
    ]
    assert without == []


def _undescribed(schema: Json, path: str) -> list[str]:
    found = []
    for name, child in schema.get("properties", {}).items():
        if len(child.get("description", "")) < 8:
            found.append(f"{path}.{name}")
        found += _undescribed(child, f"{path}.{name}")
    return found + (_undescribed(schema["items"], f"{path}[]") if "items" in schema else [])


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("spec.prefill.replicas", "Default 1"),
        ("spec.kvStore.segmentSize", "each engine rank lends"),
        ("spec.model.tokenSecretRef.name", "Name of the Secret"),
        ("status.conditions.reason", "for programs"),
    ],
)
def test_explain_of_one_field(field: str, words: str, kubectl: Kubectl) -> None:
    assert words in kubectl.run("explain", f"dinf.{field}")


def _write_status(rest: Rest, namespace: str, status: Json) -> None:
    path = f"{RESOURCES.format(namespace=namespace)}/llama/status"
    answer = rest.ask("PATCH", path, {"status": status}, "application/merge-patch+json")
    assert answer.message == ""


def test_get_shows_a_table_before_and_after_status_is_there(kubectl: Kubectl, rest: Rest, namespace: str) -> None:
    rest.create(resource(), namespace)
    header, row = kubectl.run("get", "dinf", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "READY", "PREFILL", "DECODE", "MODEL", "REASON", "AGE"]
    assert row.split()[0] == "llama"
    role = {"replicas": 2, "readyReplicas": 1, "updatedReplicas": 2}
    condition = {"type": "Ready", "status": "False", "reason": "EnginesNotReady", "message": "decode: 1 of 2"}
    _write_status(
        rest,
        namespace,
        {
            "conditions": [{**condition, "lastTransitionTime": "2026-11-30T06:00:00Z", "observedGeneration": 1}],
            "prefill": {**role, "ready": "2/2"},
            "decode": {**role, "ready": "1/2"},
            "model": "llama-8b",
        },
    )
    row = kubectl.run("get", "dinf", "-n", namespace).splitlines()[1]
    assert row.split()[:6] == ["llama", "False", "2/2", "1/2", "llama-8b", "EnginesNotReady"]
    assert "llama" in kubectl.run("get", "inference", "-n", namespace), "the category"


def test_wait_follows_the_condition(kubectl: Kubectl, rest: Rest, namespace: str) -> None:
    rest.create(resource(), namespace)
    condition = {"type": "Ready", "status": "True", "reason": "AllReady", "message": "all is as wished"}
    conditions = [{**condition, "lastTransitionTime": "2026-11-30T06:00:00Z"}]
    _write_status(rest, namespace, {"observedGeneration": 1, "conditions": conditions})
    kubectl.run("wait", "--for=condition=Ready", "--timeout=5s", "-n", namespace, "dinf/llama")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("status", "Maybe", 'supported values: "True", "False", "Unknown"'),
        ("lastTransitionTime", "yesterday", "date-time"),
        ("observedGeneration", -1, "greater than or equal to 0"),
    ],
)
def test_a_condition_has_the_form_of_kubernetes(
    field: str, value: Any, told: str, kubectl: Kubectl, rest: Rest, namespace: str
) -> None:
    rest.create(resource(), namespace)
    condition = {"type": "Ready", "status": "True", "reason": "R", "message": "m", "observedGeneration": 1}
    faulty = {**condition, "lastTransitionTime": "2026-11-30T06:00:00Z", field: value}
    path = f"{RESOURCES.format(namespace=namespace)}/llama/status"
    answer = rest.ask("PATCH", path, {"status": {"conditions": [faulty]}}, "application/merge-patch+json")
    assert (answer.code, told in answer.message) == (422, True), answer.message


def test_the_resource_itself_has_no_scale(kubectl: Kubectl, rest: Rest, namespace: str) -> None:
    """Field case C89. Two roles have two counts: one /scale could only ever move one of them."""
    rest.create(resource(), namespace)
    with pytest.raises(KubectlError, match="NotFound"):
        kubectl.run("scale", "dinf/llama", "--replicas=2", "-n", namespace)
    assert rest.ask("GET", f"{RESOURCES.format(namespace=namespace)}/llama/scale").code == 404


def _apply(kubectl: Kubectl, namespace: str, manager: str, spec: Json) -> Json:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "llama"}, "spec": spec}
    command = ("apply", "--server-side", f"--field-manager={manager}", "-n", namespace, "-o", "json", "-f", "-")
    applied: Json = json.loads(kubectl.run(*command, stdin=json.dumps(body)))["spec"]
    return applied


def test_two_managers_share_maps_and_named_lists(kubectl: Kubectl, namespace: str) -> None:
    base = {"engine": {"env": [{"name": "A", "value": "1"}]}, "decode": {"resources": {"limits": {"memory": "64Gi"}}}}
    extra = {"engine": {"env": [{"name": "B", "value": "2"}]}, "decode": {"resources": {"limits": {"cpu": "8"}}}}
    _apply(kubectl, namespace, "platform", {"model": {"uri": "hf://a/b"}, **base})
    spec = _apply(kubectl, namespace, "team", extra)
    assert sorted(entry["name"] for entry in spec["engine"]["env"]) == ["A", "B"]
    assert spec["decode"]["resources"]["limits"] == {"memory": "64Gi", "cpu": "8"}
    spec = _apply(kubectl, namespace, "team", {"engine": {"env": [{"name": "C", "value": "3"}]}})
    assert sorted(entry["name"] for entry in spec["engine"]["env"]) == ["A", "C"], "what it no longer applies is gone"
    assert spec["decode"]["resources"]["limits"] == {"memory": "64Gi"}


def test_two_managers_cannot_hold_halves_of_one_thing(kubectl: Kubectl, namespace: str) -> None:
    """Flags have an order and a reference is one thing, so the second manager is told of the conflict."""
    _apply(kubectl, namespace, "platform", {"model": {"uri": "hf://a/b"}, "engine": {"args": ["--a"]}})
    with pytest.raises(KubectlError, match=r"conflict with \"platform\".*\.spec\.engine\.args"):
        _apply(kubectl, namespace, "team", {"engine": {"args": ["--b"]}})


def test_applying_the_same_again_changes_nothing(kubectl: Kubectl, namespace: str) -> None:
    """Defaults do not drift: what GitOps tools compare stays equal."""
    body = json.dumps(resource(decode={"replicas": 2}))
    for style in (["--server-side=false"], ["--server-side", "--force-conflicts"]):
        command = ("apply", *style, "-n", namespace, "-f", "-")
        kubectl.run(*command, stdin=body)
        first = kubectl.get("dinf", "llama", namespace)
        kubectl.run(*command, stdin=body)
        again = kubectl.get("dinf", "llama", namespace)
        assert first is not None
        assert again is not None
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        kubectl.run("diff", *style, "-n", namespace, "-f", "-", stdin=body)
