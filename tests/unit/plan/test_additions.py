"""What others add to workloads is told by path and by name, once."""

from typing import Any

import pytest
from disagg_operator.api.names import FIELD_MANAGER
from disagg_operator.plan.additions import find_additions, tell_additions

Json = dict[str, Any]
OURS: Json = {
    "f:metadata": {"f:labels": {"f:inference.disagg.io/name": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:template": {
            "f:metadata": {"f:annotations": {"f:inference.disagg.io/config-hash": {}}},
            "f:spec": {
                "f:containers": {
                    'k:{"name":"engine"}': {
                        ".": {},
                        "f:image": {},
                        "f:env": {'k:{"name":"HOME"}': {".": {}, "f:value": {}}},
                    }
                }
            },
        },
    },
}


def template(**spec: Any) -> Json:
    return {"f:spec": {"f:template": {"f:spec": {"f:containers": spec}}}}


def deployment(theirs: Json, *, by: str = "kubectl-edit", **entry: Any) -> Json:
    entries = [
        {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": OURS},
        {"manager": by, "operation": "Update", "fieldsV1": theirs, **entry},
    ]
    return {"kind": "Deployment", "metadata": {"name": "llama-decode", "managedFields": entries}}


RESTARTED: Json = {
    "f:spec": {"f:template": {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}}
}
SIDECAR = template(**{'k:{"name":"proxy"}': {".": {}, "f:image": {}, "f:name": {}}})
VARIABLE = template(**{'k:{"name":"engine"}': {"f:env": {'k:{"name":"DEBUG"}': {".": {}, "f:value": {}}}}})
LABEL: Json = {"f:metadata": {"f:labels": {"f:team": {}}}}
SELECTOR: Json = {"f:spec": {"f:template": {"f:spec": {"f:nodeSelector": {".": {}, "f:zone": {}}}}}}
FINALIZER: Json = {"f:metadata": {"f:finalizers": {".": {}, 'v:"a.example/hold"': {}}}}


@pytest.mark.parametrize(
    ("theirs", "path"),
    [
        (RESTARTED, "spec.template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"),
        (SIDECAR, "spec.template.spec.containers[proxy]"),
        (VARIABLE, "spec.template.spec.containers[engine].env[DEBUG]"),
        (LABEL, "metadata.labels.team"),
        (SELECTOR, "spec.template.spec.nodeSelector.zone"),
        (FINALIZER, "metadata.finalizers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_addition_is_told_by_its_path_and_its_manager(theirs: Json, path: str) -> None:
    assert find_additions([deployment(theirs)]) == (f"Deployment/llama-decode: {path} by kubectl-edit is kept",)


@pytest.mark.parametrize(
    "child",
    [
        deployment(OURS),
        deployment(SIDECAR, by="kube-controller-manager"),
        deployment({"f:spec": {"f:paused": {}}}, subresource="scale"),
        {**deployment(SIDECAR), "kind": "Service"},
        deployment({"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/last-applied-configuration": {}}}}),
    ],
    ids=["our own fields", "a controller", "another way in", "not a workload", "kubectl's own notes"],
)
def test_what_is_no_addition(child: Json) -> None:
    assert find_additions([child]) == ()


def test_many_are_told_in_short() -> None:
    labels: Json = {"f:metadata": {"f:labels": {f"f:label{number}": {} for number in range(7)}}}
    (sentence,) = find_additions([deployment(labels)])
    assert sentence.endswith("metadata.labels.label3 and 3 more by kubectl-edit is kept")


def test_an_addition_is_told_once() -> None:
    additions = find_additions([deployment(RESTARTED)])
    (event,) = tell_additions(additions, {"hints": ["something else"]})
    assert (event.type, event.reason) == ("Normal", "AddedElsewhere")
    assert "restartedAt" in event.message
    assert not list(tell_additions(additions, {"hints": list(additions)}))
    assert not list(tell_additions((), {}))
