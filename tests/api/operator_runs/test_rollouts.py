"""Rollouts: both roles keep pace when KV changes, a pause holds, an undo brings back, and additions are shown."""

import json
import random
import time
from typing import Any

import pytest
from api.manifests import resource
from api.operator_runs.site import Operator, Site, holds_for
from api.operator_runs.test_scaling import settle, warnings
from demo.kubectl import Kubectl
from router.programs import eventually

Json = dict[str, Any]
READY: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
STARTING: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}


def blocks(size: int, **spec: Any) -> Json:
    """A spec whose KV is of this block size."""
    return {"engine": {"args": ["--block-size", str(size)]}, **spec}


def template_labels(site: Site, role: str) -> Json:
    labels: Json = site.live("deployments", f"llama-{role}")["spec"]["template"]["metadata"]["labels"]
    return labels


def is_paused(site: Site, part: str) -> bool:
    return bool(site.live("deployments", f"llama-{part}")["spec"].get("paused"))


def put_pods(site: Site, generation: str, **pods: list[Json]) -> None:
    """Pods of the present templates, with these statuses by role."""
    for role, statuses in pods.items():
        for number, status in enumerate(statuses):
            site.put_pod(f"{role}-{generation}-{number}", "llama", role, status, template_labels(site, role))


def test_the_role_that_is_ahead_waits_for_the_other(site: Site, operator: Operator) -> None:
    two: Json = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}
    settle(site, **blocks(16, **two))
    put_pods(site, "old", prefill=[READY, READY], decode=[READY, READY])
    old = template_labels(site, "decode")["inference.disagg.io/kv-revision"]
    site.apply(resource("llama", **blocks(32, **two)))
    site.wait_status("llama")
    eventually(lambda: template_labels(site, "decode")["inference.disagg.io/kv-revision"] != old, "a new KV revision")
    assert not is_paused(site, "prefill")
    assert not is_paused(site, "decode")
    put_pods(site, "new", prefill=[STARTING], decode=[READY])
    eventually(lambda: is_paused(site, "decode"), "decode is ahead, and waits")
    assert not is_paused(site, "prefill")
    eventually(lambda: "decode waits" in site.condition("llama", "Progressing")["message"], "status says why")
    site.edit("pods", "prefill-new-0", {"status": READY}, "status")
    eventually(lambda: not is_paused(site, "decode"), "prefill has caught up")
    # Back again in the middle: what is there of the old revision is what is wished.
    site.apply(resource("llama", **blocks(16, **two)))
    eventually(lambda: template_labels(site, "decode")["inference.disagg.io/kv-revision"] == old, "the old KV revision")
    assert holds_for(lambda: not is_paused(site, "prefill") and not is_paused(site, "decode"), 1)


def test_a_new_operator_goes_on_with_a_rollout_as_it_finds_it(site: Site) -> None:
    with site.operator():
        settle(site, **blocks(16))
        put_pods(site, "old", prefill=[READY], decode=[READY])
        site.apply(resource("llama", **blocks(32)))
        site.wait_status("llama")
        put_pods(site, "new", prefill=[STARTING], decode=[READY])
        eventually(lambda: is_paused(site, "decode"), "decode waits")
    site.edit("pods", "prefill-new-0", {"status": READY}, "status")
    with site.operator():
        eventually(lambda: not is_paused(site, "decode"), "it goes on")


def test_a_pause_holds_every_rollout_and_no_count(site: Site, operator: Operator) -> None:
    settle(site)
    site.apply(resource("llama", paused=True, decode={"replicas": 2, "args": ["--max-num-seqs", "7"]}))
    eventually(lambda: all(is_paused(site, part) for part in ("prefill", "decode", "master", "router")), "all wait")
    assert site.live("deployments", "llama-decode")["spec"]["replicas"] == 2
    site.serve("llama")
    # What its controller reports of a paused Deployment whose template is new.
    site.report("llama-decode", 2, "DeploymentPaused", updatedReplicas=0)
    site.wait_condition("llama", "Ready", "False", "Paused")
    site.wait_condition("llama", "Progressing", "False", "Paused")
    site.wait_condition("llama", "Available", "True")
    site.wait_condition("llama", "Degraded", "False")
    site.apply(resource("llama", decode={"replicas": 2, "args": ["--max-num-seqs", "7"]}))
    eventually(
        lambda: not any(is_paused(site, part) for part in ("prefill", "decode", "master", "router")), "it goes on"
    )
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True")


def test_a_pause_takes_up_no_new_defaults(site: Site) -> None:
    with site.operator():
        settle(site)
    before = template_labels(site, "decode")
    with site.operator(images={"engine-image-cuda": "engine:2"}):
        site.apply(resource("llama", paused=True))
        eventually(lambda: is_paused(site, "decode"), "it waits")
        site.apply(resource("llama", paused=False))
        eventually(lambda: not is_paused(site, "decode"), "it goes on")
    assert template_labels(site, "decode") == before


@pytest.mark.parametrize(
    "later",
    [
        {"decode": {"args": ["--max-num-seqs", "7"], "env": [{"name": "A", "value": "b"}], "image": "mine:1"}},
        {"kvStore": {"segmentSize": "8Gi", "config": {"enable_offload": False}}, "restart": "now"},
        {"prefill": {"template": {"metadata": {"labels": {"team": "a"}}}}, "router": {"prefillTimeout": "2m"}},
    ],
    ids=["decode", "store", "template"],
)
def test_the_patch_of_a_revision_undoes_what_came_later(
    site: Site, operator: Operator, kubectl: Kubectl, later: Json
) -> None:
    """As docs/operations.md says, with kubectl alone."""
    first: Json = {"decode": {"replicas": 1, "args": ["--max-num-seqs", "9"]}}
    settle(site, **first)
    spec = site.live("dinf", "llama")["spec"]
    digests = {role: template_labels(site, role)["inference.disagg.io/revision"] for role in ("prefill", "decode")}
    kubectl.patch("dinf", "llama", site.namespace, {"spec": later})
    kubectl.patch("dinf", "llama", site.namespace, {"spec": {"decode": {"replicas": 3}}})
    site.wait_status("llama")
    (name,) = [
        record["metadata"]["name"]
        for record in site.must("GET", site.path("controllerrevisions"))["items"]
        if record["revision"] == 1
    ]
    found = kubectl.run("get", "controllerrevision", name, "-n", site.namespace, "-o", "jsonpath={.data.undo}")
    assert json.loads(found), "a JSON patch"
    kubectl.run("patch", "dinf", "llama", "-n", site.namespace, "--type=json", "-p", found)
    undone = site.live("dinf", "llama")["spec"]
    assert undone["decode"].pop("replicas") == 3, "a count is no part of it"
    assert spec["decode"].pop("replicas") == 1
    assert undone == spec

    def is_back() -> bool:
        return digests == {role: template_labels(site, role)["inference.disagg.io/revision"] for role in digests}

    eventually(is_back, "the templates are what they were")


EDITS: list[Json] = [
    blocks(16, decode={"replicas": 3, "args": ["--max-num-seqs", "7"]}),
    blocks(32, kvStore={"metadata": {"type": "HTTP"}}, prefill={"replicas": 0}),
    blocks(32, paused=True, decode={"scaling": {"minReplicas": 2}}, router={"replicas": 2}),
    blocks(16, networkPolicy="Disabled", restart="now", decode={"env": [{"name": "A", "value": "b"}]}),
    blocks(16, kvStore={"segmentSize": "8Gi", "master": {"external": {"address": "mc.ops.svc:50051"}}}),
]


@pytest.mark.parametrize("seed", range(3))
def test_quick_edits_end_as_a_fresh_apply_would(site: Site, operator: Operator, seed: int) -> None:
    """Some edits come while the ones before are still being written, some after."""
    draw = random.Random(seed)
    edits = [draw.choice(EDITS) for _ in range(8)]
    for spec in edits:
        site.apply(resource("llama", **spec))
        time.sleep(draw.choice([0, 0, 0.05, 0.3]))
    site.wait_quiet("llama")
    found = shapes(site)
    site.delete("dinf", "llama", "Foreground")
    eventually(lambda: not site.children("llama") and site.get("dinf", "llama") is None, "nothing is left")
    site.apply(resource("llama", **edits[-1]))
    site.wait_quiet("llama")
    assert found == shapes(site)


def shapes(site: Site) -> Json:
    """What the operator applied for a resource, by kind and name, without what is each object's own."""
    found = {}
    for (kind, name), child in site.children("llama").items():
        if kind == "controllerrevisions":
            continue  # A history has to differ.
        body = {key: child[key] for key in child if key not in ("metadata", "status")}
        if kind == "services":
            body["spec"] = {
                key: value for key, value in child["spec"].items() if key not in ("clusterIP", "clusterIPs")
            }
        found[f"{kind}/{name}"] = {**body, "labels": child["metadata"]["labels"]}
    return found


def test_additions_stay_and_are_told_once(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    """Field case C34."""
    settle(site)
    where = ("-n", site.namespace)
    kubectl.run("rollout", "restart", "deployment/llama-decode", *where)
    kubectl.run("set", "env", "deployment/llama-decode", "DEBUG=1", *where)
    kubectl.run("annotate", "deployment/llama-prefill", "note=mine", *where)

    def hints() -> str:
        return " ".join(site.live("dinf", "llama")["status"].get("hints", []))

    for path in ("[kubectl.kubernetes.io/restartedAt]", "containers[engine].env[DEBUG]", "metadata.annotations.note"):
        eventually(lambda path=path: path in hints(), f"{path} is shown; hints are {hints()}")  # type: ignore[misc]
    site.wait_quiet("llama")
    events = warnings(site, "AddedElsewhere")
    assert len([event for event in events if "env[DEBUG]" in event]) >= 1
    before, told = site.versions("llama"), len(events)
    assert holds_for(lambda: site.versions("llama") == before and len(warnings(site, "AddedElsewhere")) == told, 2)
    env = site.live("deployments", "llama-decode")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "DEBUG", "value": "1"} in env
    kubectl.run("annotate", "deployment/llama-prefill", "note-", *where)
    eventually(lambda: "metadata.annotations.note" not in hints(), "what is gone is shown no more")
