"""Whether an object is as it was applied, judged from `managedFields`."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from disagg_operator.api.names import FIELD_MANAGER
from disagg_operator.plan.ownership import ANNOTATION_APPLIED, find_writer, is_as_applied, is_ours, with_digest

WANTED = with_digest(
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "n", "labels": {"a": "b"}, "ownerReferences": [{"uid": "u"}]},
        "spec": {
            "replicas": 2,
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "ports": [{"port": 80}],
            "finalizers": ["x"],
            "args": ["--a", "--b"],
        },
    }
)
FIELDS: dict[str, Any] = {
    "f:metadata": {
        "f:labels": {"f:a": {}},
        "f:annotations": {f"f:{ANNOTATION_APPLIED}": {}},
        "f:ownerReferences": {'k:{"uid":"u"}': {".": {}, "f:uid": {}}},
    },
    "f:spec": {
        "f:replicas": {},
        "f:volumes": {'k:{"name":"tmp"}': {".": {}, "f:name": {}, "f:emptyDir": {}}},
        # The server adds the protocol's default to the key.
        "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}},
        "f:finalizers": {'v:"x"': {}},
        "f:args": {},
    },
}


def live(fields: Mapping[str, Any] | None = None, **entry: Any) -> dict[str, Any]:
    body = copy.deepcopy(WANTED)
    managed = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields or copy.deepcopy(FIELDS), **entry}
    body["metadata"]["managedFields"] = [managed]
    return body


def without(path: str) -> dict[str, Any]:
    """Our fields less one. The server leaves no empty parents behind."""
    fields = copy.deepcopy(FIELDS)
    steps = path.split("/")
    while steps:
        *parents, last = steps
        node = fields
        for parent in parents:
            node = node[parent]
        del node[last]
        if node:
            break
        steps = parents
    return fields


def test_as_applied() -> None:
    assert is_as_applied(WANTED, live())


@pytest.mark.parametrize(
    "path",
    [
        "f:metadata/f:labels/f:a",
        'f:metadata/f:ownerReferences/k:{"uid":"u"}',
        "f:spec/f:replicas",
        'f:spec/f:volumes/k:{"name":"tmp"}/f:emptyDir',
        "f:spec/f:args",
    ],
)
def test_a_field_that_somebody_took_is_drift(path: str) -> None:
    assert not is_as_applied(WANTED, live(without(path)))


def test_the_last_item_of_a_list_that_somebody_took_is_drift() -> None:
    fields = copy.deepcopy(FIELDS)
    fields["f:spec"]["f:finalizers"] = {'v:"y"': {}}
    assert not is_as_applied(WANTED, live(fields))


def test_fields_of_others_are_no_drift() -> None:
    body = live()
    body["spec"]["theirs"] = 1
    body["metadata"]["labels"]["theirs"] = "1"
    entry = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:theirs": {}}}}
    body["metadata"]["managedFields"].insert(0, entry)
    assert is_as_applied(WANTED, body)


@pytest.mark.parametrize("entry", [{"manager": "kubectl"}, {"operation": "Update"}, {"subresource": "status"}], ids=str)
def test_only_our_own_apply_counts(entry: dict[str, Any]) -> None:
    assert not is_as_applied(WANTED, live(**entry))


def test_another_wish_is_another_digest() -> None:
    wanted = copy.deepcopy(WANTED)
    wanted["spec"]["replicas"] = 3
    del wanted["metadata"]["annotations"]
    assert not is_as_applied(with_digest(wanted), live())


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    one, other = {"metadata": {"name": "a"}, "x": 1, "y": 2}, {"y": 2, "x": 1, "metadata": {"name": "a"}}
    assert with_digest(one) == with_digest(other)


def test_a_manifest_is_not_changed() -> None:
    manifest = {"metadata": {"name": "a", "annotations": {"b": "c"}}}
    with_digest(manifest)
    assert manifest == {"metadata": {"name": "a", "annotations": {"b": "c"}}}


def test_one_field_is_ours_until_somebody_writes_another_value() -> None:
    assert is_ours(live(), "spec", "replicas")
    assert find_writer(live(), "spec", "replicas") == ""
    taken = live(without("f:spec/f:replicas"))
    entry = {"operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    taken["metadata"]["managedFields"] += [
        {**entry, "manager": "earlier", "time": "2026-11-30T00:00:00Z"},
        {**entry, "manager": "kubectl", "time": "2026-11-30T00:00:01Z", "subresource": "scale"},
        {**entry, "manager": "elsewhere", "time": "2026-11-30T00:00:02Z", "fieldsV1": {"f:spec": {"f:args": {}}}},
    ]
    assert not is_ours(taken, "spec", "replicas")
    assert find_writer(taken, "spec", "replicas") == "kubectl"
    assert not is_ours({"metadata": {}}, "spec", "replicas")
