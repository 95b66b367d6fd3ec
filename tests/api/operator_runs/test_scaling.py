"""Each role is scaled on its own: by kubectl, by autoscalers, by the resource; and nobody's count is taken away."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from api.manifests import at, resource
from api.operator_runs.site import Operator, Site, holds_for
from api.operator_runs.test_quiet import count
from demo.kubectl import Kubectl, KubectlError
from router.programs import Program, eventually, running

Json = dict[str, Any]
SCALERS, AUTOSCALERS = "disaggregatedinferencescalers", "horizontalpodautoscalers"
BY_CPU: Json = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}},
}
BY_QUEUE: Json = {
    "type": "External",
    "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "4"}},
}


def settle(site: Site, **spec: Any) -> None:
    """A resource whose pods are all ready."""
    site.apply(resource("llama", **spec))
    site.wait_built("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True")
    site.wait_quiet("llama")


def scale(kubectl: Kubectl, site: Site, target: str, replicas: int) -> None:
    kubectl.run("scale", target, f"--replicas={replicas}", "-n", site.namespace)


def runs(site: Site, role: str = "decode") -> int:
    return int(site.live("deployments", f"llama-{role}")["spec"]["replicas"])


def wished(site: Site, role: str = "decode") -> int:
    return int(site.live(SCALERS, f"llama-{role}")["spec"]["replicas"])


def scale_of(site: Site, role: str = "decode") -> Json:
    return site.must("GET", site.path(SCALERS, f"llama-{role}") + "/scale")


def warnings(site: Site, reason: str) -> list[str]:
    events = site.must("GET", site.path("events"))["items"]
    return [event["message"] for event in events if event["reason"] == reason]


def owners(site: Site, role: str = "decode") -> set[str]:
    """Managers that own the count of a scaler."""
    entries = site.live(SCALERS, f"llama-{role}")["metadata"]["managedFields"]
    return {entry["manager"] for entry in entries if "f:replicas" in entry["fieldsV1"].get("f:spec", {})}


def test_a_role_with_scaling_is_scaled_by_kubectl_and_the_other_is_not(
    site: Site, operator: Operator, kubectl: Kubectl
) -> None:
    """Field case C83: the count wished, the count there, and a selector of pods."""
    settle(site, decode={"scaling": {}})
    assert site.get(SCALERS, "llama-prefill") is None
    assert (wished(site), runs(site)) == (1, 1)
    before = site.live("deployments", "llama-prefill")["metadata"]["resourceVersion"]
    scale(kubectl, site, "dinfs/llama-decode", 3)
    eventually(lambda: runs(site) == 3, "the Deployment follows")
    assert ("poddisruptionbudgets", "llama-decode") in site.children("llama")
    site.serve("llama")
    eventually(lambda: scale_of(site)["status"].get("replicas") == 3, "/scale tells what is there")
    told = scale_of(site)
    assert told["spec"]["replicas"] == 3
    assert told["status"]["selector"] == "inference.disagg.io/name=llama,inference.disagg.io/role=decode"
    site.wait_condition("llama", "Ready", "True")
    assert site.live("dinf", "llama")["status"]["decode"]["ready"] == "3/3"
    assert site.live("deployments", "llama-prefill")["metadata"]["resourceVersion"] == before
    row = kubectl.run("get", "dinfs", "llama-decode", "-n", site.namespace, "--no-headers").split()
    assert row[:5] == ["llama-decode", "llama", "decode", "3", "3"]


def test_the_count_is_never_the_operators(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    settle(site, decode={"scaling": {"minReplicas": 2}})
    assert wished(site) == 2, "without a workload it begins with its lower bound"
    assert owners(site) == {"disaggregated-inference-operator-seed"}
    scale(kubectl, site, "dinfs/llama-decode", 4)
    eventually(lambda: runs(site) == 4, "it is scaled")
    site.wait_quiet("llama")
    assert owners(site) == {"kubectl"}
    site.edit(SCALERS, "llama-decode", {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}})
    eventually(
        lambda: site.live(SCALERS, "llama-decode")["metadata"]["labels"]["app.kubernetes.io/managed-by"] != "me",
        "what is ours is repaired",
    )
    assert (wished(site), runs(site), owners(site)) == (4, 4, {"kubectl"})


@contextmanager
def counts_over_time(kubectl: Kubectl, site: Site, deployment: str) -> Iterator[list[int]]:
    """Every count that a Deployment had while the block ran."""
    log, seen = site.directory / "counts.log", list[int]()
    path = "jsonpath={.spec.replicas}{'\\n'}"
    watch = kubectl.command("get", "deployment", deployment, "-n", site.namespace, "--watch", "-o", path)
    with running(Program(watch, log)):
        eventually(lambda: bool(log.read_text()), "the watch has begun")
        yield seen
        # One more change, so that all before it are known to have come.
        kubectl.run("label", "deployment", deployment, "-n", site.namespace, "end=yes")
        version = len(log.read_text().split())
        eventually(lambda: len(log.read_text().split()) >= version, "the watch has caught up")
    seen += [int(line) for line in log.read_text().split()]


def test_from_written_to_scaled_and_back_no_replica_is_lost(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    settle(site, decode={"replicas": 3})
    with counts_over_time(kubectl, site, "llama-decode") as seen:
        site.apply(resource("llama", decode={"scaling": {}}))
        eventually(lambda: site.get(SCALERS, "llama-decode") is not None, "the scaler comes")
        site.wait_quiet("llama")
        assert wished(site) == 3
        site.apply(resource("llama", decode={"replicas": 3}))
        eventually(lambda: site.get(SCALERS, "llama-decode") is None, "the scaler goes")
        site.wait_quiet("llama")
    assert set(seen) == {3}


def test_a_deleted_scaler_comes_back_with_the_present_count(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    settle(site, decode={"scaling": {}})
    scale(kubectl, site, "dinfs/llama-decode", 5)
    eventually(lambda: runs(site) == 5, "it is scaled")
    first = site.live(SCALERS, "llama-decode")["metadata"]["uid"]
    site.delete(SCALERS, "llama-decode")
    eventually(
        lambda: (site.get(SCALERS, "llama-decode") or {"metadata": {"uid": first}})["metadata"]["uid"] != first,
        "there is a new one",
    )
    assert (wished(site), runs(site)) == (5, 5)


def test_other_changes_of_the_resource_leave_the_count(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    """Two field managers apply the resource again and again, as GitOps does; one changes what rolls out."""
    settle(site, decode={"scaling": {}})
    scale(kubectl, site, "dinfs/llama-decode", 4)
    eventually(lambda: runs(site) == 4, "it is scaled")
    child = site.live(SCALERS, "llama-decode")["metadata"]["uid"]
    with counts_over_time(kubectl, site, "llama-decode") as seen:
        site.apply(resource("llama", decode={"scaling": {}, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}))
        other = {"apiVersion": "inference.disagg.io/v1alpha1", "kind": "DisaggregatedInference"}
        body = {**other, "metadata": {"name": "llama"}, "spec": {"router": {"replicas": 2}}}
        path = site.path("dinf", "llama") + "?fieldManager=other"
        site.must("PATCH", path, body, "application/apply-patch+yaml")
        eventually(lambda: site.live("deployments", "llama-router")["spec"]["replicas"] == 2, "both took effect")
        site.apply(resource("llama", decode={"scaling": {"maxReplicas": 9}}))
        site.wait_quiet("llama")
    assert set(seen) == {4}
    assert site.live(SCALERS, "llama-decode")["metadata"]["uid"] == child
    assert wished(site) == 4


def test_a_deployment_that_is_scaled_itself_is_put_back_and_told(
    site: Site, operator: Operator, kubectl: Kubectl
) -> None:
    """Field case C82."""
    settle(site, decode={"scaling": {"minReplicas": 2}})
    for role, target, own in (("decode", "dinfs/llama-decode", 2), ("prefill", "spec.prefill.replicas", 1)):
        scale(kubectl, site, f"deployment/llama-{role}", 7)
        eventually(lambda role=role, own=own: runs(site, role) == own, "it is put back")  # type: ignore[misc]
        eventually(
            lambda target=target: any(target in told for told in warnings(site, "ScaledElsewhere")),  # type: ignore[misc]
            "it is told where to scale instead",
        )
    first = next(told for told in warnings(site, "ScaledElsewhere") if "llama-decode" in told)
    assert first == (
        "Deployment/llama-decode was scaled to 7 by kubectl and is put back to 2; scale dinfs/llama-decode instead"
    )
    assert len(warnings(site, "ScaledElsewhere")) == 2


def test_our_own_changes_of_a_count_are_no_drift(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    settle(site, prefill={"replicas": 2}, decode={"scaling": {}})
    scale(kubectl, site, "dinfs/llama-decode", 3)
    eventually(lambda: runs(site) == 3, "the scaler moves decode")
    site.apply(resource("llama", prefill={"replicas": 1}, decode={"scaling": {}}))
    eventually(lambda: runs(site, "prefill") == 1, "the resource moves prefill")
    site.wait_quiet("llama")
    assert warnings(site, "ScaledElsewhere") == []


def test_metrics_make_an_autoscaler_that_changes_and_goes_with_them(site: Site, operator: Operator) -> None:
    settle(site, decode={"scaling": {"minReplicas": 2, "maxReplicas": 6, "metrics": [BY_CPU]}})
    made = site.live(AUTOSCALERS, "llama-decode")["spec"]
    assert made["scaleTargetRef"] == {
        "apiVersion": "inference.disagg.io/v1alpha1",
        "kind": "DisaggregatedInferenceScaler",
        "name": "llama-decode",
    }
    assert (made["minReplicas"], made["maxReplicas"], made["metrics"]) == (2, 6, [BY_CPU])
    slow = {"scaleDown": {"stabilizationWindowSeconds": 600}}
    scaling = {"minReplicas": 2, "maxReplicas": 8, "metrics": [BY_CPU, BY_QUEUE], "behavior": slow}
    site.apply(resource("llama", decode={"scaling": scaling}))
    eventually(lambda: site.live(AUTOSCALERS, "llama-decode")["spec"]["maxReplicas"] == 8, "it is changed")
    changed = site.live(AUTOSCALERS, "llama-decode")["spec"]
    assert len(changed["metrics"]) == 2
    assert changed["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600
    site.apply(resource("llama", decode={"scaling": {"minReplicas": 2}}))
    eventually(lambda: site.get(AUTOSCALERS, "llama-decode") is None, "it goes")
    assert wished(site) == 2
    site.apply(resource("llama", decode={"scaling": scaling}))
    eventually(lambda: site.get(AUTOSCALERS, "llama-decode") is not None, "it comes again")
    site.apply(resource("llama", decode={"replicas": 2}))
    eventually(lambda: site.get(AUTOSCALERS, "llama-decode") is None, "it goes with the scaler")
    eventually(lambda: site.get(SCALERS, "llama-decode") is None, "the scaler goes")
    assert runs(site) == 2


def test_an_emptied_scaling_is_refused_aloud_and_not_taken_for_none(site: Site, operator: Operator) -> None:
    """Server-side apply makes null of a map whose fields all go; taken for none, the count would become 1."""
    settle(site, decode={"scaling": {"minReplicas": 3}})
    path = site.path("dinf", "llama") + "?fieldManager=user&force=true"
    emptied = resource("llama", decode={"scaling": {}})
    answer = site.rest.ask("PATCH", path, emptied, "application/apply-patch+yaml")
    assert (answer.code, "spec.decode.scaling" in answer.message) == (422, True)
    assert holds_for(lambda: runs(site) == 3, 1)
    site.edit("dinf", "llama", {"spec": {"decode": {"scaling": {"minReplicas": None}}}})
    site.wait_quiet("llama")
    assert (wished(site), runs(site)) == (3, 3), "by a merge, as kubectl apply does it, it can be emptied"


def test_autoscalers_of_others_on_a_scaler_are_left_alone(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    settle(site, decode={"scaling": {}})
    kubectl.run("autoscale", "dinfs/llama-decode", "--min=1", "--max=4", "--cpu=70%", "-n", site.namespace)
    theirs = site.live(AUTOSCALERS, "llama-decode")
    assert theirs["spec"]["scaleTargetRef"]["kind"] == "DisaggregatedInferenceScaler"
    site.edit("dinf", "llama", {"metadata": {"labels": {"look": "now"}}})
    site.wait_quiet("llama")
    assert site.live(AUTOSCALERS, "llama-decode") == theirs


def test_settled_scalers_and_autoscalers_are_looked_at_and_not_written(site: Site, kubectl: Kubectl) -> None:
    reconciled = "disaggregatedinference_reconcile_total"
    with site.operator("--resync-seconds=1") as operator:
        scaling = {"minReplicas": 2, "maxReplicas": 6, "metrics": [BY_CPU]}
        settle(site, prefill={"scaling": {}}, decode={"scaling": scaling}, scaling={"ratio": {"min": 0.25, "max": 2}})
        scale(kubectl, site, "dinfs/llama-decode", 3)
        eventually(lambda: runs(site) == 3, "it is scaled")
        site.serve("llama")
        site.wait_condition("llama", "Ready", "True")
        site.wait_quiet("llama")
        writes, looks, versions = len(site.writes()), count(operator, reconciled), site.versions("llama")
        eventually(lambda: count(operator, reconciled) >= looks + 5, "five resyncs")
        assert site.writes()[writes:] == []
        assert site.versions("llama") == versions
        assert count(operator, reconciled, result="error") == 0


def test_decode_goes_to_zero_and_back(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    """Field case C80."""
    settle(site, prefill={"scaling": {}}, decode={"scaling": {}})
    for role in ("decode", "prefill"):
        scale(kubectl, site, f"dinfs/llama-{role}", 0)
        eventually(lambda role=role: runs(site, role) == 0, "nothing is run")  # type: ignore[misc]
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True", "Suspended")
    site.wait_condition("llama", "Available", "False", "Suspended")
    site.wait_condition("llama", "Degraded", "False")
    site.wait_condition("llama", "ScalingLimited", "False", "AsWished")
    site.edit("dinf", "llama", {"spec": {"router": {"replicas": 2}}})
    site.wait_quiet("llama")
    assert (wished(site), runs(site)) == (0, 0), "no other change wakes it"
    scale(kubectl, site, "dinfs/llama-decode", 2)
    eventually(lambda: runs(site) == 2, "it comes back")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True", "Ready")
    site.wait_condition("llama", "KVSharing", "False", "PrefillScaledToZero")


def test_an_autoscaler_that_cannot_wake_its_role_is_told(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 4, "metrics": [BY_CPU]}
    settle(site, decode={"scaling": scaling})
    scale(kubectl, site, "dinfs/llama-decode", 0)
    told = site.wait_condition("llama", "ScalingLimited", "True", "CannotWake")
    assert "dinfs/llama-decode stands at 0" in told["message"]
    eventually(lambda: bool(warnings(site, "ScalingLimited")), "an event tells it too")
    site.apply(resource("llama", decode={"scaling": {**scaling, "minReplicas": 0, "metrics": [BY_QUEUE]}}))
    site.wait_condition("llama", "ScalingLimited", "False", "AsWished")


def test_the_ratio_holds_a_role_and_lets_it_go(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    roles: Json = {"prefill": {"scaling": {}}, "decode": {"scaling": {}}}
    settle(site, **roles, scaling={"ratio": {"min": 0.25}})
    scale(kubectl, site, "dinfs/llama-decode", 6)
    told = site.wait_condition("llama", "ScalingLimited", "True", "RatioGuard")
    assert "dinfs/llama-decode asks for 6 and 4 are run" in told["message"]
    assert (wished(site), runs(site)) == (6, 4)
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True", "Ready")
    scale(kubectl, site, "dinfs/llama-prefill", 2)
    eventually(lambda: runs(site) == 6, "what was held is done")
    site.wait_condition("llama", "ScalingLimited", "False", "AsWished")
    site.serve("llama")
    site.wait_quiet("llama")
    scale(kubectl, site, "dinfs/llama-prefill", 1)
    site.wait_condition("llama", "ScalingLimited", "True", "RatioGuard")
    assert (runs(site, "prefill"), runs(site)) == (2, 6), "what is held stays as it is"
    site.apply(resource("llama", **roles))
    eventually(lambda: runs(site, "prefill") == 1, "without the ratio the wish is done")


def test_a_role_is_not_made_smaller_in_the_middle_of_a_rollout(
    site: Site, operator: Operator, kubectl: Kubectl
) -> None:
    settle(site, decode={"scaling": {"minReplicas": 4}})
    site.report("llama-decode", 4, "ReplicaSetUpdated", replicas=5, updatedReplicas=1)
    scale(kubectl, site, "dinfs/llama-decode", 2)
    told = site.wait_condition("llama", "ScalingLimited", "True", "RolloutInProgress")
    assert "asks for 2 and 4 are run" in told["message"]
    assert holds_for(lambda: runs(site) == 4, 1)
    scale(kubectl, site, "dinfs/llama-decode", 6)
    eventually(lambda: runs(site) == 6, "larger it may be at any time")
    scale(kubectl, site, "dinfs/llama-decode", 2)
    assert holds_for(lambda: runs(site) == 6, 1)
    site.report("llama-decode", 6)
    eventually(lambda: runs(site) == 2, "the rollout is over")
    site.wait_condition("llama", "ScalingLimited", "False", "AsWished")


def test_a_scaler_that_somebody_else_made_is_in_the_way(site: Site, operator: Operator) -> None:
    body = {
        "apiVersion": "inference.disagg.io/v1alpha1",
        "kind": "DisaggregatedInferenceScaler",
        "metadata": {"name": "llama-decode"},
        "spec": {"replicas": 9, "role": "decode", "resource": "llama"},
    }
    theirs = site.must("POST", site.path(SCALERS), body)
    site.apply(resource("llama", decode={"scaling": {}}))
    told = site.wait_condition("llama", "Ready", "False", "ResourceConflict")
    assert "DisaggregatedInferenceScaler/llama-decode" in told["message"]
    assert site.live(SCALERS, "llama-decode") == theirs
    site.delete(SCALERS, "llama-decode")
    site.wait_built("llama")
    assert wished(site) == 1


def test_what_a_scaler_is_for_cannot_be_changed(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    settle(site, decode={"scaling": {}})
    for change in ({"role": "prefill"}, {"resource": "other"}):
        with pytest.raises(KubectlError, match="must not change"):
            kubectl.patch("dinfs", "llama-decode", site.namespace, {"spec": change})
    with pytest.raises(KubectlError, match="less than or equal to 10000"):
        scale(kubectl, site, "dinfs/llama-decode", 10001)


def test_without_keda_a_scaled_object_is_a_condition_and_the_rest_goes_on(site: Site, operator: Operator) -> None:
    settle(site)
    triggers = [{"type": "cron", "metadata": {}}]
    site.apply(resource("llama", **at("decode.scaling", {"keda": {"triggers": triggers}})))
    told = site.wait_condition("llama", "Stalled", "True", "InvalidSpec")
    assert "spec.decode.scaling.keda" in told["message"]
    assert "install KEDA" in told["message"]
    site.wait_condition("llama", "Available", "True")
    site.apply(resource("llama", decode={"scaling": {}}))
    eventually(lambda: site.get(SCALERS, "llama-decode") is not None, "what can be had is made")
    site.wait_status("llama")
    assert not site.condition("llama", "Stalled")


def test_ours_are_found_by_name_without_their_labels(site: Site, operator: Operator, kubectl: Kubectl) -> None:
    settle(site, decode={"scaling": {}})
    scale(kubectl, site, "dinfs/llama-decode", 0)
    eventually(lambda: runs(site) == 0, "it is scaled")
    with counts_over_time(kubectl, site, "llama-decode") as seen:
        site.edit(SCALERS, "llama-decode", {"metadata": {"labels": {"inference.disagg.io/name": None}}})
        site.edit("dinf", "llama", {"metadata": {"labels": {"look": "now"}}})
        eventually(
            lambda: "inference.disagg.io/name" in site.live(SCALERS, "llama-decode")["metadata"]["labels"],
            "the label is back",
        )
    assert set(seen) == {0}


def test_the_scalers_go_with_their_resource(site: Site, operator: Operator) -> None:
    settle(site, decode={"scaling": {"maxReplicas": 3, "metrics": [BY_CPU]}})
    site.delete("dinf", "llama")
    eventually(lambda: not site.children("llama"), "all children are gone", 60)


def test_kubectl_explains_it(kubectl: Kubectl) -> None:
    assert "what kubectl scale, HPA and KEDA work on" in " ".join(kubectl.run("explain", "dinfs").split())
    crd = json.loads(kubectl.run("get", "crd", "disaggregatedinferencescalers.inference.disagg.io", "-o", "json"))
    assert "NonStructuralSchema" not in {condition["type"] for condition in crd["status"]["conditions"]}
