"""What is ours comes back, what others add stays, and nothing is looked at that is not ours."""

import copy
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from api.conftest import CRD_FILE
from api.manifests import resource
from api.operator_runs.proxy import Faults, fault_proxy
from api.operator_runs.site import PARTS, Operator, Site, holds_for
from api.operator_runs.test_faults import plain
from api.operator_runs.test_quiet import count, is_up, neighbour
from api.operator_runs.test_scaling import BY_CPU, SCALERS
from demo.kubectl import Kubectl
from router.programs import eventually

Json = dict[str, Any]
APPLY = "application/apply-patch+yaml"
RECONCILED = "disaggregatedinference_reconcile_total"
OURS = "app.kubernetes.io/managed-by=disaggregated-inference-operator"


def bodies(site: Site, name: str = "llama") -> dict[tuple[str, str], Json]:
    """Children without what differs between two that were made alike."""
    return {key: plain(child) for key, child in site.children(name).items()}


def settle(site: Site, **spec: Any) -> None:
    site.apply(resource("llama", **spec))
    site.wait_built("llama")
    site.wait_quiet("llama")


def test_every_child_that_is_deleted_comes_back(site: Site, operator: Operator) -> None:
    """All of them at once, the record of what they were built with among them."""
    settle(site, prefill={"replicas": 2}, decode={"scaling": {"maxReplicas": 3, "metrics": [BY_CPU]}})
    before, old = bodies(site), {child["metadata"]["uid"] for child in site.children("llama").values()}
    assert len(before) > 15
    for kind, name in before:
        site.delete(kind, name)

    def is_new() -> bool:
        there = site.children("llama")
        return there.keys() == before.keys() and not old & {child["metadata"]["uid"] for child in there.values()}

    eventually(is_new, "all are there again", 60)
    site.wait_quiet("llama")
    assert bodies(site) == before


def test_every_child_that_is_emptied_is_filled_again(site: Site, operator: Operator) -> None:
    """Labels, annotations and what can be taken off the spec, by whoever it was."""
    settle(site, prefill={"replicas": 2})
    before = bodies(site)
    for kind, name in before:
        taken = {"metadata": {"labels": {"app.kubernetes.io/part-of": None, "inference.disagg.io/name": None}}}
        site.edit(kind, name, taken)
    ports = site.live("services", "llama-router")["spec"]["ports"]
    emptied: dict[tuple[str, str], Json] = {
        ("services", "llama-router"): {"spec": {"ports": [{**port, "targetPort": 1} for port in ports]}},
        ("configmaps", "llama-mooncake-config"): {"data": None},
        ("roles", "llama-router"): {"rules": []},
        ("poddisruptionbudgets", "llama-prefill"): {"spec": {"maxUnavailable": 2}},
        ("networkpolicies", "llama-engines"): {"spec": {"ingress": [{}]}},
    }
    for (kind, name), change in emptied.items():
        site.edit(kind, name, change)
    # A user's eyes may be the only ones on it: without our label no event comes of it.
    site.edit("dinf", "llama", {"metadata": {"labels": {"look": "now"}}})
    eventually(lambda: bodies(site) == before, "all is as it was", 60)


def test_a_sidecar_and_all_that_it_needs_stays_through_a_rollout(site: Site, operator: Operator) -> None:
    settle(site)
    mount = {"name": "theirs", "mountPath": "/theirs"}
    pod = {
        "containers": [
            {"name": "sidecar", "image": "sidecar:1", "volumeMounts": [mount]},
            {"name": "engine", "volumeMounts": [mount]},
        ],
        "initContainers": [{"name": "prepare", "image": "prepare:1"}],
        "volumes": [{"name": "theirs", "emptyDir": {}}],
        "nodeSelector": {"pool": "theirs"},
    }
    theirs: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llama-decode"},
        "spec": {"template": {"metadata": {"labels": {"team": "a"}}, "spec": pod}},
    }
    # Of the operator's eventual objections, none may be to what is not in its own fields.
    site.must("PATCH", f"{site.path('deployments', 'llama-decode')}?fieldManager=theirs", theirs, APPLY)
    site.apply(resource("llama", decode={"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}))
    eventually(lambda: "NCCL_DEBUG" in json.dumps(template(site, "decode")), "it rolls")
    site.wait_quiet("llama")
    there = template(site, "decode")
    names = {container["name"] for kind in ("containers", "initContainers") for container in there["spec"][kind]}
    assert {"sidecar", "prepare", "engine"} <= names
    assert {"name": "theirs", "emptyDir": {}} in there["spec"]["volumes"]
    engine = next(container for container in there["spec"]["containers"] if container["name"] == "engine")
    assert mount in engine["volumeMounts"]
    assert there["spec"]["nodeSelector"] == {"pool": "theirs"}
    assert there["metadata"]["labels"]["team"] == "a"


def template(site: Site, part: str) -> Json:
    found: Json = site.live("deployments", f"llama-{part}")["spec"]["template"]
    return found


def test_an_owner_reference_that_is_taken_off_comes_back(site: Site, operator: Operator) -> None:
    settle(site)
    site.edit("services", "llama-router", {"metadata": {"ownerReferences": None}})
    eventually(lambda: bool(site.live("services", "llama-router")["metadata"].get("ownerReferences")), "it is back")


def test_only_what_is_labelled_is_watched(site: Site) -> None:
    """Field cases C29 and C98: watches have an end, and neither Secrets nor anybody else's pods are asked for."""
    seen: list[tuple[str, str]] = []
    faults = Faults(sees=lambda method, path: seen.append((method, path)))
    with fault_proxy(site.server.kubeconfig_for(site.user), faults) as through, site.operator(kubeconfig=through):
        settle(site)
    asked = [(method, urlsplit(path)) for method, path in list(seen)]
    watches = [(url.path.rpartition("/")[2], parse_qs(url.query)) for _, url in asked if "watch=true" in url.query]
    assert {kind for kind, _ in watches} >= {"disaggregatedinferences", "deployments", "pods", "services", "configmaps"}
    for kind, query in watches:
        assert kind == "disaggregatedinferences" or query.get("labelSelector") == [OURS], kind
        assert "timeoutSeconds" in query, kind
    lists = [url for method, url in asked if method == "GET" and is_a_list(url.path)]
    assert lists
    for url in lists:
        narrowed = {"labelSelector", "fieldSelector"} & parse_qs(url.query).keys()
        assert narrowed or url.path.endswith("/disaggregatedinferences"), url.geturl()
    assert not [url.path for _, url in asked if "secrets" in url.path]
    assert all(f"/namespaces/{site.namespace}/" in url.path for url in lists)


def is_a_list(path: str) -> bool:
    """Whether a path is a collection of objects in a namespace, and neither one object nor discovery."""
    return "/namespaces/" in path and len(path.split("/namespaces/")[1].split("/")) == 2


def test_without_the_right_to_post_events_all_else_goes_on(api_site: Site) -> None:
    """Field case C98: a missing right is one clear line and no crash."""
    api_site.grant(without=("events", "create"))
    with api_site.operator("--resync-seconds=2") as operator:
        settle(api_site)
        api_site.serve("llama")
        api_site.wait_condition("llama", "Ready", "True")
        assert operator.program.running
        assert is_up(operator)
        api_site.wait_quiet("llama")
        told = [line for line in operator.log.splitlines() if "forbidden" in line.lower()]
        assert told
        assert all("was not posted" in line for line in told), told
        assert holds_for(lambda: operator.log.lower().count("forbidden") == len(told), 3), "not again and again"
        assert count(operator, RECONCILED, result="error") == 0


@pytest.fixture
def api_site(site: Site) -> Site:
    """Another namespace, in which the operator has no rights yet."""
    return neighbour(site, "bare")


def test_a_count_that_others_set_lives_through_restart_upgrade_and_apply(site: Site, kubectl: Kubectl) -> None:
    """Field cases C82 and C89: an autoscaler went to 5; operator, chart and resource are renewed around it."""
    wish = resource("llama", decode={"scaling": {"minReplicas": 1, "maxReplicas": 9}})
    with site.operator():
        site.apply(wish)
        site.wait_built("llama")
        kubectl.run("scale", f"{SCALERS}/llama-decode", "--replicas=5", "-n", site.namespace)
        eventually(lambda: site.live("deployments", "llama-decode")["spec"]["replicas"] == 5, "it is scaled")
        site.wait_quiet("llama")
    versions = [site.live("deployments", "llama-decode")["metadata"]["generation"]]
    for images in ({}, {"router": "router:2", "engine-image-cuda": "engine:2"}):
        with site.operator(images=images) as operator:
            eventually(lambda operator=operator: is_up(operator), "it is up")  # type: ignore[misc]
            site.apply(wish)
            site.edit("dinf", "llama", {"metadata": {"labels": {"images": str(len(images))}}})
            eventually(lambda operator=operator: count(operator, RECONCILED) > 0, "it has looked")  # type: ignore[misc]
            site.wait_quiet("llama")
            versions.append(site.live("deployments", "llama-decode")["metadata"]["generation"])
    assert versions == [versions[0]] * 3, "nothing in the Deployment was changed, not even for a moment"
    assert site.live("deployments", "llama-decode")["spec"]["replicas"] == 5


def test_an_upgrade_of_the_definition_changes_no_template(spare: Site, spare_kubectl: Kubectl) -> None:
    """A new field with a default, and a new default of an old field: neither is a change by the user."""
    with spare.operator("--resync-seconds=2") as operator:
        settle(spare)
        before = {part: spare.live("deployments", f"llama-{part}")["spec"] for part in PARTS}
        newer = yaml.safe_load(CRD_FILE.read_text())
        roles = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        roles["newPart"] = {"type": "object", "default": {}, "properties": {"mode": {"type": "string", "default": "a"}}}
        roles["revisionHistoryLimit"]["default"] = 7
        spare_kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(newer))
        eventually(lambda: "newPart" in spare.live("dinf", "llama")["spec"], "the new default shows")
        looks = count(operator, RECONCILED)
        eventually(lambda: count(operator, RECONCILED) > looks + 1, "it has looked")
        spare.apply(resource("llama", decode={"replicas": 2}))
        eventually(lambda: spare.live("deployments", "llama-decode")["spec"]["replicas"] == 2, "it is scaled")
        spare.wait_quiet("llama")
        after = {part: copy.deepcopy(spare.live("deployments", f"llama-{part}")["spec"]) for part in PARTS}
        after["decode"]["replicas"] = 1
        assert after == before
        assert not spare.condition("llama", "Stalled")
