"""What the builders make, judged by a real API server: every field known, every pod admitted, nothing moves twice."""

from typing import Any

import pytest
from api.rest import Rest
from disagg_operator.build.inputs import Manifest
from unit.build.rubric import templates
from unit.build.samples import EXAMPLES, build, make, read_examples

_PLURALS = {
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "DisaggregatedInferenceScaler": "disaggregatedinferencescalers",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}
# Their definitions are not Kubernetes' own.
_FOREIGN = {"LeaderWorkerSet", "PodMonitor", "ScaledObject"}
_RDMA = {"protocol": "rdma", "rdma": {"resourceName": "rdma/hca", "hostNetwork": "Required"}}
_TEMPLATE = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "containers": [{"name": "engine", "readinessProbe": {"exec": {"command": ["true"]}}}],
    },
}
SPECS: dict[str, dict[str, Any]] = {
    "minimal": {},
    "http-metadata-on-cpus": {"kvStore": {"metadata": {"type": "HTTP"}}, "engine": {"device": "cpu"}},
    "etcd-metadata": {"kvStore": {"metadata": {"type": "Etcd", "image": "etcd.example/etcd:3.7"}}},
    "external-master": {"kvStore": {"master": {"external": {"address": "mc.ops.svc:50051"}}}},
    "image-model": {"model": {"uri": "oci://registry.example/m:1"}, "decode": {"replicas": 3, "drainSeconds": 0}},
    "claim-and-keys": {"model": {"uri": "pvc://models/m"}, "apiKeySecretRef": {"name": "keys", "key": "clients"}},
    "over-nodes": {role: {"parallelism": {"tensor": 4, "nodes": 2}} for role in ("prefill", "decode")},
    "rdma": {"kvStore": _RDMA},
    "template": {"decode": {"template": _TEMPLATE}, "router": {"replicas": 2, "service": {"type": "NodePort"}}},
}


def all_children() -> dict[str, tuple[Manifest, ...]]:
    cases = {name: build(make(spec)).children for name, spec in SPECS.items()}
    for path in EXAMPLES:
        for resource in read_examples(path):
            cases[f"{path.stem}-{resource.metadata.name}"] = build(resource).children
    return cases


CASES = all_children()
cases = pytest.mark.parametrize("case", CASES)


def path_of(manifest: Manifest, namespace: str) -> str:
    version = manifest["apiVersion"]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}/namespaces/{namespace}/{_PLURALS[manifest['kind']]}/{manifest['metadata']['name']}"


@cases
def test_every_child_is_taken_and_a_second_apply_moves_nothing(rest: Rest, namespace: str, case: str) -> None:
    for child in CASES[case]:
        if child["kind"] in _FOREIGN:
            continue
        # Without its owner: there is none here, and the garbage collector would take the child away.
        metadata = {"name": child["metadata"]["name"], "labels": child["metadata"]["labels"], "namespace": namespace}
        manifest = {**child, "metadata": metadata}
        if child["kind"] == "DisaggregatedInferenceScaler":
            # Its count is another manager's, who creates it.
            manifest["spec"] = {**child["spec"], "replicas": 1}
        path = f"{path_of(manifest, namespace)}?fieldManager=test&force=true&fieldValidation=Strict"
        answers = [rest.ask("PATCH", path, manifest, "application/apply-patch+yaml") for _ in range(2)]
        where = f"{child['kind']} {child['metadata']['name']}"
        assert [answer.message for answer in answers] == ["", ""], where
        versions = {answer.body["metadata"]["resourceVersion"] for answer in answers}
        assert len(versions) == 1, f"{where} moved"


@cases
def test_pods_are_admitted_under_restricted_unless_rdma_asks_for_more(rest: Rest, namespace: str, case: str) -> None:
    for where, template in templates(CASES[case]):
        metadata = {"name": "pod", "labels": template["metadata"]["labels"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        if "serviceAccountName" in pod["spec"]:  # an account that nobody has made in this namespace
            pod["spec"] = {key: value for key, value in pod["spec"].items() if key != "serviceAccountName"}
        answer = rest.ask("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)
        asks_for_more = "IPC_LOCK" in str(template["spec"]["containers"][0]["securityContext"])
        if asks_for_more:
            assert "violates PodSecurity" in answer.message, where
            assert "must not include" in answer.message, where
        else:
            assert answer.message == "", where
