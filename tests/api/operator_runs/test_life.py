"""One resource's life: its children come, serve, change, and go with it."""

import time
from urllib.parse import quote

import pytest
from api.manifests import at, resource
from api.operator_runs.site import ENGINES, KINDS, PARTS, Operator, Site, holds_for
from router.programs import eventually

CPU = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}
ALL_CHILDREN = {
    ("configmaps", "llama-mooncake-config"),
    ("serviceaccounts", "llama-router"),
    ("roles", "llama-router"),
    ("rolebindings", "llama-router"),
    *{("deployments", f"llama-{part}") for part in PARTS},
    *{("services", f"llama-{part}") for part in PARTS},
    *{("networkpolicies", f"llama-{part}") for part in ("engines", "master", "router")},
}


def test_a_resource_gets_all_children_and_a_status(site: Site, operator: Operator) -> None:
    uid = site.apply(resource("llama", prefill={"replicas": 2}))["metadata"]["uid"]
    site.wait_built("llama")
    children = site.children("llama")
    assert children.keys() >= ALL_CHILDREN
    for child in children.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (uid, True, True)
    assert ("poddisruptionbudgets", "llama-prefill") in children
    assert ("poddisruptionbudgets", "llama-decode") not in children, "a single replica has none"
    status = site.live("dinf", "llama")["status"]
    assert status["observedGeneration"] == 1
    assert status["prefill"]["ready"] == "0/2"
    assert status["model"] == "model"
    assert {condition["type"] for condition in status["conditions"]} >= {
        *("Ready", "Available", "Progressing", "Degraded", "KVSharing", "UpdateAvailable", "Reconciling")
    }


def test_a_users_object_is_never_written_but_for_its_status(site: Site, operator: Operator) -> None:
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True")
    metadata = site.live("dinf", "llama")["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    assert metadata["generation"] == 1
    managers = {(entry["manager"], entry.get("subresource", "")) for entry in metadata["managedFields"]}
    assert managers == {("user", ""), ("disaggregated-inference-operator", "status")}


def test_a_new_resource_is_not_ready_from_the_first_moment_it_is_seen(site: Site) -> None:
    """kstatus takes an object without a Ready condition for a finished one."""
    site.apply(resource("llama"))
    with site.operator():
        eventually(lambda: bool(site.condition("llama", "Ready")), "Ready is written")
    writes = [(event["verb"], event["objectRef"]["resource"]) for event in site.writes()]
    assert writes[0] == ("patch", "disaggregatedinferences"), "the status comes before the first child"


def test_it_is_ready_when_every_pod_is(site: Site, operator: Operator) -> None:
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.serve("llama", decode=0)
    site.wait_condition("llama", "Ready", "False", "DecodeNotReady")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True", "Ready")
    site.wait_condition("llama", "Available", "True")
    site.wait_condition("llama", "Progressing", "False", "Settled")
    site.wait_condition("llama", "Degraded", "False")
    assert not site.condition("llama", "Reconciling")
    assert site.condition("llama", "KVSharing")["reason"] == "MasterUnreachable", "no master runs here"
    eventually(lambda: "Ready" in reasons_of_events(site), "the event that it is ready")


def reasons_of_events(site: Site) -> set[str]:
    return {event["reason"] for event in site.must("GET", site.path("events"))["items"]}


def test_ready_waits_for_pods_of_the_present_revision(site: Site, operator: Operator) -> None:
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True")
    site.edit("deployments", "llama-decode", {"status": {"updatedReplicas": 0}}, "status")
    site.wait_condition("llama", "Ready", "False", "DecodeNotReady")


@pytest.mark.parametrize("role", ENGINES)
def test_scaling_a_role_changes_the_count_of_that_role_alone(site: Site, operator: Operator, role: str) -> None:
    site.apply(resource("llama"))
    site.wait_built("llama")
    before = site.children("llama")
    site.apply(resource("llama", **{role: {"replicas": 3}}))
    eventually(lambda: site.live("deployments", f"llama-{role}")["spec"]["replicas"] == 3, "it is scaled")
    site.wait_quiet("llama")
    after = site.children("llama")
    scaled = ("deployments", f"llama-{role}")
    assert after.keys() - before.keys() == {("poddisruptionbudgets", f"llama-{role}")}
    assert after[scaled]["spec"]["template"] == before[scaled]["spec"]["template"]
    changed = {key for key in before if after[key]["metadata"]["resourceVersion"] != version_of(before[key])}
    assert changed == {scaled}


def version_of(body: dict[str, dict[str, str]]) -> str:
    return body["metadata"]["resourceVersion"]


def test_a_change_of_the_store_rolls_engines_and_a_label_rolls_nothing(site: Site, operator: Operator) -> None:
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.wait_quiet("llama")
    before, writes = site.versions("llama"), len(site.writes())
    site.edit("dinf", "llama", {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}})
    assert holds_for(lambda: site.versions("llama") == before, 2)
    assert len(site.writes()) == writes
    templates = {part: template_of(site, part) for part in PARTS}
    site.apply(resource("llama", **at("kvStore.segmentSize", "2Gi")))
    eventually(lambda: template_of(site, "prefill") != templates["prefill"], "prefill rolls")
    site.wait_quiet("llama")
    assert {part for part in PARTS if template_of(site, part) != templates[part]} == {"prefill", "decode"}


def template_of(site: Site, part: str) -> object:
    return site.live("deployments", f"llama-{part}")["spec"]["template"]


def test_a_change_of_one_role_rolls_that_role_and_comes_back(site: Site, operator: Operator) -> None:
    """Field case C32: only decode's image, then only an environment variable of prefill, then back."""
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.wait_quiet("llama")
    first = {part: template_of(site, part) for part in PARTS}
    site.apply(resource("llama", decode={"image": "engine:other"}))
    eventually(lambda: template_of(site, "decode") != first["decode"], "decode rolls")
    site.wait_quiet("llama")
    assert {part for part in PARTS if template_of(site, part) != first[part]} == {"decode"}
    site.apply(resource("llama", prefill={"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}))
    eventually(lambda: template_of(site, "prefill") != first["prefill"], "prefill rolls")
    site.apply(resource("llama", prefill={"env": []}))
    eventually(lambda: {part: template_of(site, part) for part in PARTS} == first, "all is as it was")
    site.wait_quiet("llama")
    body = site.live("dinf", "llama")
    assert body["status"]["observedGeneration"] == body["metadata"]["generation"]


@pytest.mark.parametrize("running", [True, False], ids=["operator-runs", "operator-stopped"])
def test_deleting_it_removes_every_child(site: Site, *, running: bool) -> None:
    with site.operator() as operator:
        site.apply(resource("llama"))
        site.wait_built("llama")
        if not running:
            operator.program.end()
        site.delete("dinf", "llama")
        eventually(lambda: not site.children("llama"), "all children are gone", 60)
        assert site.get("dinf", "llama") is None


def test_one_recreated_at_once_gets_children_of_its_own(site: Site, operator: Operator) -> None:
    """Field case C31: the old one's children are still going when the new one comes. Five times in a row."""
    for count in range(1, 6):
        uid = site.apply(resource("llama", decode={"replicas": count}))["metadata"]["uid"]
        if count < 5:
            eventually(lambda: bool(site.children("llama")), "the first children are there")
            site.delete("dinf", "llama")

    def is_new() -> bool:
        children = site.children("llama")
        owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in children.values()}
        decode = children.get(("deployments", "llama-decode"))
        return children.keys() >= ALL_CHILDREN and owners == {uid} and bool(decode and decode["spec"]["replicas"] == 5)

    eventually(is_new, "only children of the new one are there", 60)
    before = {key: child["metadata"]["uid"] for key, child in site.children("llama").items()}
    time.sleep(2)
    assert {key: child["metadata"]["uid"] for key, child in site.children("llama").items()} == before


def test_ten_live_through_a_restart_and_go_without_help(site: Site) -> None:
    """Field case C26."""
    names = [f"model-{number}" for number in range(10)]
    with site.operator() as first:
        for name in names:
            site.apply(resource(name))
        for name in names:
            site.wait_built(name)
        first.program.end()
        uids = {name: {key: c["metadata"]["uid"] for key, c in site.children(name).items()} for name in names}
        with site.operator():
            time.sleep(2)
            for name in names:
                assert {key: c["metadata"]["uid"] for key, c in site.children(name).items()} == uids[name]
                site.delete("dinf", name)
            eventually(lambda: not any(site.children(name) for name in names), "all are gone", 60)


def test_the_longest_name_serves(site: Site, operator: Operator) -> None:
    """Field case C19: every kind of child, selectors and status work with it."""
    name = "a" * 44 + "z"
    scaling = {"minReplicas": 2, "maxReplicas": 3, "metrics": [{"type": "Resource", "resource": CPU}]}
    parts = {"decode": {"scaling": scaling}, "prefill": {"replicas": 2}, "router": {"replicas": 2}}
    site.apply(resource(name, **parts, kvStore={"metadata": {"type": "HTTP"}}))
    site.wait_built(name)
    site.serve(name)
    site.wait_condition(name, "Ready", "True")
    assert {kind for kind, _ in site.children(name)} == KINDS.keys()
    labels = site.live("deployments", f"{name}-decode")["spec"]["template"]["metadata"]["labels"]
    site.put_pod("one-of-decode", name, "decode", {}, labels)
    selector = site.live("dinf", name)["status"]["decode"]["selector"]
    selected = site.must("GET", f"{site.path('pods')}?labelSelector={quote(selector)}")["items"]
    assert [pod["metadata"]["name"] for pod in selected] == ["one-of-decode"]
    site.delete("dinf", name)
    eventually(lambda: not site.children(name), "all children are gone", 60)


def test_services_of_other_names_do_not_reach_into_pods(site: Site, operator: Operator) -> None:
    """Field case C53: a Service called `vllm` would set VLLM_PORT in every pod."""
    for name in ("vllm", "mooncake"):
        site.apply(resource(name))
        site.wait_built(name)
        for part in PARTS:
            spec = site.live("deployments", f"{name}-{part}")["spec"]["template"]["spec"]
            assert spec["enableServiceLinks"] is False
