"""What is written and what is pruned, for everything that can be there."""

import json
from typing import Any

from disagg_operator.api.names import FIELD_MANAGER, KIND
from disagg_operator.plan.changes import Changes, plan_changes
from disagg_operator.plan.ownership import ANNOTATION_APPLIED, with_digest
from hypothesis import given
from hypothesis import strategies as st

UID = "new"


def child(name: str, data: str = "1") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "n", "ownerReferences": [{"uid": UID}]},
        "data": {"k": data},
    }


def applied(manifest: dict[str, Any], uid: str = UID, kind: str = KIND, **metadata: Any) -> dict[str, Any]:
    """The object that applying gives."""
    body: dict[str, Any] = json.loads(json.dumps(with_digest(manifest)))
    fields = {
        "f:data": {"f:k": {}},
        "f:metadata": {
            "f:annotations": {f"f:{ANNOTATION_APPLIED}": {}},
            "f:ownerReferences": {f'k:{{"uid":"{UID}"}}': {}},
        },
    }
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    owner = {"uid": uid, "kind": kind, "controller": True}
    body["metadata"] |= {"uid": f"uid-of-{manifest['metadata']['name']}", "ownerReferences": [owner], **metadata}
    body["metadata"]["managedFields"] = [entry]
    return body


def names(manifests: tuple[dict[str, Any], ...]) -> list[str]:
    return [manifest["metadata"]["name"] for manifest in manifests]


def plan(desired: list[dict[str, Any]], there: list[dict[str, Any]]) -> Changes:
    return plan_changes(desired, there, UID, KIND)


def test_what_is_missing_is_applied_in_order_and_what_is_equal_is_not() -> None:
    changes = plan([child("a"), child("b"), child("c")], [applied(child("b"))])
    assert names(changes.applies) == ["a", "c"]
    assert changes.deletions == ()


def test_what_differs_is_applied_and_what_is_wanted_no_more_is_pruned() -> None:
    changes = plan([child("a", "2")], [applied(child("a")), applied(child("old"))])
    assert names(changes.applies) == ["a"]
    assert names(changes.deletions) == ["old"]


def test_somebody_elses_object_is_neither_applied_nor_pruned() -> None:
    foreign = applied(child("a"), uid="else", kind="Deployment")
    unwanted = applied(child("b"), uid="else", kind="Deployment")
    changes = plan([child("a"), child("c")], [foreign, unwanted])
    assert (changes.applies, changes.deletions) == ((), ())
    assert changes.conflicts == ("ConfigMap/a",)


def test_an_object_without_an_owner_is_somebody_elses_unless_we_applied_it() -> None:
    orphan = applied(child("a"), ownerReferences=[])
    for theirs in ([], [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:data": {}}}]):
        foreign = {**orphan, "metadata": {**orphan["metadata"], "managedFields": theirs}}
        assert plan([child("a")], [foreign]).conflicts == ("ConfigMap/a",)
        assert plan([], [foreign]).deletions == ()
    orphan["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"].pop("f:ownerReferences")
    changes = plan([child("a")], [orphan])
    assert (names(changes.applies), changes.conflicts) == (["a"], ())
    assert names(plan([], [orphan]).deletions) == ["a"]


def test_a_child_of_an_earlier_resource_is_waited_for() -> None:
    changes = plan([child("a"), child("b")], [applied(child("a"), uid="old")])
    assert (changes.applies, changes.conflicts, changes.leaving) == ((), (), ("ConfigMap/a",))


def test_an_unwanted_child_of_an_earlier_resource_is_left_to_the_garbage_collector() -> None:
    assert plan([child("a")], [applied(child("b"), uid="old")]).deletions == ()


def test_a_child_on_its_way_out_is_waited_for_and_not_deleted_again() -> None:
    leaving = applied(child("a"), deletionTimestamp="now")
    assert plan([child("a")], [leaving]).leaving == ("ConfigMap/a",)
    assert plan([], [leaving]).deletions == ()


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), st.sampled_from(["1", "2"]))
def test_what_a_plan_leads_to_needs_no_plan(wanted: set[str], there: set[str], data: str) -> None:
    desired = [child(name, data) for name in sorted(wanted)]
    live = {name: applied(child(name)) for name in there}
    changes = plan(desired, list(live.values()))
    for manifest in changes.applies:
        live[manifest["metadata"]["name"]] = applied(child(manifest["metadata"]["name"], data))
    for manifest in changes.deletions:
        del live[manifest["metadata"]["name"]]
    again = plan(desired, list(live.values()))
    assert (again.applies, again.deletions) == ((), ())
    assert live.keys() == wanted
