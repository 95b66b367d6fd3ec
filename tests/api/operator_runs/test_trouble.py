"""What stands in the way: other people's objects and edits, wrong resources, refusals, pods that do not start."""

import json

import pytest
from api.manifests import at, resource
from api.operator_runs.site import PARTS, Json, Operator, Site, holds_for
from router.programs import eventually

MANAGED_BY = "app.kubernetes.io/managed-by"
CONFIG = "llama-mooncake-config"


def config_map(name: str, **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"mine": "yes"}}


def test_somebody_elses_object_is_never_adopted_and_nothing_is_half_built(site: Site, operator: Operator) -> None:
    theirs = site.must("POST", site.path("configmaps"), config_map(CONFIG))
    site.apply(resource("llama"))
    told = site.wait_condition("llama", "Ready", "False", "ResourceConflict")
    assert f"ConfigMap/{CONFIG}" in told["message"]
    assert holds_for(lambda: not site.children("llama"), 1)
    assert site.live("configmaps", CONFIG) == theirs
    site.delete("configmaps", CONFIG)
    site.wait_built("llama")
    assert not site.condition("llama", "Stalled")


def test_labels_like_ours_make_nothing_ours(site: Site, operator: Operator) -> None:
    labels = {MANAGED_BY: "disaggregated-inference-operator", "inference.disagg.io/name": "llama"}
    site.must("POST", site.path("configmaps"), config_map("not-wanted", labels=labels))
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.wait_quiet("llama")
    assert site.live("configmaps", "not-wanted")["data"] == {"mine": "yes"}


def test_drift_in_our_fields_is_repaired_and_other_fields_stay(site: Site, operator: Operator) -> None:
    """Field case C34: also `kubectl rollout restart`, which is an annotation of somebody else in our template."""
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.wait_quiet("llama")
    container = {"name": "engine", "env": [{"name": "THEIRS", "value": "1"}]}
    annotations = {"kubectl.kubernetes.io/restartedAt": "2026-11-30T00:00:00Z"}
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llama-decode", "labels": {"team": "a"}},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}},
    }
    path = f"{site.path('deployments', 'llama-decode')}?fieldManager=theirs"
    site.must("PATCH", path, theirs, "application/apply-patch+yaml")
    site.edit("deployments", "llama-decode", {"spec": {"replicas": 5}, "metadata": {"labels": {MANAGED_BY: "me"}}})
    site.edit("configmaps", CONFIG, {"data": {"mooncake_config.json": "{}", "extra": "kept"}})
    site.delete("services", "llama-router")
    site.edit("services", "llama-decode", {"spec": {"selector": {"inference.disagg.io/role": "prefill"}}})

    def is_repaired() -> bool:
        deployment, service = site.live("deployments", "llama-decode"), site.live("services", "llama-decode")
        return (
            deployment["spec"]["replicas"] == 1
            and deployment["metadata"]["labels"][MANAGED_BY] == "disaggregated-inference-operator"
            and site.live("configmaps", CONFIG)["data"]["mooncake_config.json"] != "{}"
            and site.get("services", "llama-router") is not None
            and service["spec"]["selector"]["inference.disagg.io/role"] == "decode"
        )

    eventually(is_repaired, "what is ours is as it was")
    deployment = site.live("deployments", "llama-decode")
    assert deployment["metadata"]["labels"]["team"] == "a"
    assert annotations.items() <= deployment["spec"]["template"]["metadata"]["annotations"].items()
    assert {"name": "THEIRS", "value": "1"} in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert site.live("configmaps", CONFIG)["data"]["extra"] == "kept"
    before = site.versions("llama")
    assert holds_for(lambda: site.versions("llama") == before, 2), "nobody fights"


WRONG = {
    "no-memory": at("prefill.resources", {"limits": {"memory": "1Gi"}}),
    "autoscaler": at("decode.scaling", {"minReplicas": 0, "maxReplicas": 2, "metrics": [{"type": "Resource"}]}),
    "owned-flag": at("decode.template", {"spec": {"containers": [{"name": "engine", "args": ["--port", "1"]}]}}),
}
PATHS = {
    "no-memory": "spec.prefill.resources",
    "autoscaler": "spec.decode.scaling.minReplicas",
    "owned-flag": "spec.decode.template",
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_resource_gets_no_child_and_a_sentence(site: Site, operator: Operator, case: str) -> None:
    site.apply(resource("llama", **WRONG[case]))
    told = site.wait_condition("llama", "Ready", "False", "InvalidSpec")
    assert PATHS[case] in told["message"]
    site.wait_condition("llama", "Stalled", "True", "InvalidSpec")
    assert holds_for(lambda: not site.children("llama"), 1)
    site.apply(resource("llama"))
    site.wait_built("llama")
    assert not site.condition("llama", "Stalled")


SECRET = "hf_" + "a1B2" * 9
PASTED = {
    "store-config": at("kvStore.config", {"metadata_backend": "redis", "metadata_server_auth": SECRET}),
    "address": at("kvStore.config", {"metadata_server": f"redis://:{SECRET}@r:6379"}),
    "template": at("decode.template", {"spec": {"containers": [{"name": "engine", "args": [SECRET]}]}}),
    "override": at("decode.kvTransferConfig", {"kv_connector_extra_config": {"token": SECRET}}),
}


def test_a_secret_in_a_wrong_place_is_told_nowhere(site: Site) -> None:
    """Field cases C05 and C92: not in status, events, children or the log, and the field is named."""
    with site.operator() as operator:
        for name, spec in PASTED.items():
            site.apply(resource(name, **spec))
        for name in PASTED:
            told = site.wait_condition(name, "Stalled", "True", "InvalidSpec")
            assert "spec." in told["message"]
            assert not site.children(name)
        assert "nearest known key is metadata_server" in site.condition("store-config", "Stalled")["message"]
        eventually(lambda: {event["involvedObject"]["name"] for event in events_of(site)} >= PASTED.keys(), "events")
        statuses = [site.live("dinf", name)["status"] for name in PASTED]
        assert SECRET not in json.dumps([events_of(site), statuses]) + operator.log


def events_of(site: Site) -> list[Json]:
    found: list[Json] = site.must("GET", site.path("events"))["items"]
    return found


def test_an_operator_without_the_devices_engine_image_says_so_and_builds_nothing(site: Site) -> None:
    wish = {"engine": {"device": "cpu"}}
    with site.operator(images={"engine-image-cpu": ""}):
        site.apply(resource("llama", **wish))
        told = site.wait_condition("llama", "Stalled", "True", "InvalidSpec")
        assert "spec.engine.image: " in told["message"]
        assert holds_for(lambda: not site.children("llama"), 1)
    with site.operator():
        site.wait_built("llama")
    with site.operator(images={"engine-image-cpu": ""}):
        site.wait_quiet("llama")
        assert not site.condition("llama", "Stalled"), "what was recorded goes on"
        assert site.condition("llama", "UpdateAvailable")["status"] == "False", "no image is no update"


def test_a_change_for_the_worse_leaves_what_runs_and_goes_on_telling_how_it_is(site: Site, operator: Operator) -> None:
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True")
    before = {key: child["spec"] for key, child in site.children("llama").items() if key[0] == "deployments"}
    site.apply(resource("llama", **WRONG["no-memory"]))
    site.wait_condition("llama", "Stalled", "True")
    site.wait_condition("llama", "Available", "True")
    assert {k: child["spec"] for k, child in site.children("llama").items() if k[0] == "deployments"} == before
    site.report("llama-decode", 0)
    site.wait_condition("llama", "Available", "False", "DecodeNotReady")
    site.wait_condition("llama", "Degraded", "True", "DecodeNotReady")
    assert site.live("dinf", "llama")["status"]["decode"]["ready"] == "0/1"


def test_one_refused_child_keeps_no_other_back_and_is_told(site: Site, operator: Operator) -> None:
    """What only the API server knows to be wrong."""
    site.apply(resource("llama", **at("decode.template", {"spec": {"nodeSelector": {"pool": "not a label"}}})))
    told = site.wait_condition("llama", "Stalled", "True", "ChildRefused")
    assert "Deployment/llama-decode" in told["message"]
    assert "not a label" in told["message"]
    others = {("deployments", f"llama-{part}") for part in PARTS if part != "decode"}
    assert site.children("llama").keys() >= others
    site.apply(resource("llama"))
    site.wait_built("llama")
    assert not site.condition("llama", "Stalled")


def test_pods_that_do_not_start_are_told_with_their_last_words(site: Site, operator: Operator) -> None:
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.serve("llama", prefill=0, decode=0)
    crash = {"exitCode": 1, "reason": "Error", "message": "INFO start\nValueError: no such quantization\n"}
    back_off = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    container = {"name": "engine", "image": "none", "imageID": "", "ready": False, "restartCount": 3}
    state = {**container, "state": {"waiting": back_off}, "lastState": {"terminated": crash}}
    site.put_pod("llama-decode-1", "llama", "decode", {"containerStatuses": [state]})
    no_image = {"waiting": {"reason": "ImagePullBackOff", "message": "registry.example: not found"}}
    site.put_pod("llama-prefill-1", "llama", "prefill", {"containerStatuses": [{**container, "state": no_image}]})

    def told() -> str:
        return str(site.condition("llama", "Degraded").get("message"))

    site.wait_condition("llama", "Degraded", "True", "PodFailing")
    eventually(lambda: "ValueError: no such quantization" in told(), "the crash")
    eventually(lambda: "ImagePullBackOff: registry.example: not found" in told(), "the image")


@pytest.mark.parametrize("own_master", [True, False], ids=["own-master", "external-master"])
def test_what_keeps_engines_from_the_store_is_told(site: Site, operator: Operator, *, own_master: bool) -> None:
    """Field cases C43 and C103: the engines serve all the same, and the condition has what they tried and saw."""
    master = {} if own_master else {"external": {"address": "mc.ops:50051"}}
    site.apply(resource("llama", **at("kvStore.master", master)))
    built = {("deployments", "llama-prefill"), ("deployments", "llama-decode"), ("deployments", "llama-router")}
    eventually(lambda: built <= site.children("llama").keys(), "it is built")
    note = "the Mooncake store was not ready after 60 s: mc.ops:50051: the name does not resolve"
    ended = {"exitCode": 0, "reason": "Completed", "message": note}
    init = {"name": "mooncake-config", "image": "none", "imageID": "", "restartCount": 0, "ready": True}
    status = {"initContainerStatuses": [{**init, "state": {"terminated": ended}}]}
    site.put_pod("llama-prefill-1", "llama", "prefill", status)
    site.serve("llama")
    reason = "MasterUnreachable" if own_master else "MasterExternal"
    told = site.wait_condition("llama", "KVSharing", "Unknown", reason)
    assert told["message"].endswith(f"pod llama-prefill-1 said at its start: {note}")
    site.wait_condition("llama", "Available", "True")


def test_a_quota_is_told(site: Site, operator: Operator) -> None:
    """Field case C86."""
    site.apply(resource("llama"))
    site.wait_built("llama")
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    site.report("llama-decode", 0, "ReplicaSetUpdated", conditions=[failure])
    told = site.wait_condition("llama", "Degraded", "True", "PodFailing")
    assert "exceeded quota: gpus" in told["message"]


def test_wished_zero_is_no_loss_and_loss_is_no_wish(site: Site, operator: Operator) -> None:
    """Field case C101, both roles at zero among it."""
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True")
    site.report("llama-prefill", 0)
    site.wait_condition("llama", "Degraded", "True", "PrefillNotReady")
    site.wait_condition("llama", "Ready", "False", "PrefillNotReady")
    site.wait_condition("llama", "Available", "True")
    site.wait_condition("llama", "KVSharing", "False", "PrefillNotReady")
    site.apply(resource("llama", prefill={"replicas": 0}))
    site.wait_quiet("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True", "Ready")
    site.wait_condition("llama", "Degraded", "False")
    site.wait_condition("llama", "KVSharing", "False", "PrefillScaledToZero")
    site.apply(resource("llama", prefill={"replicas": 0}, decode={"replicas": 0}))
    site.wait_quiet("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True", "Suspended")
    site.wait_condition("llama", "Available", "False", "Suspended")
    site.wait_condition("llama", "Degraded", "False")


def test_a_secret_that_is_missing_is_told_by_the_kubelets_own_words(site: Site, operator: Operator) -> None:
    """The operator may not read Secrets, so it cannot look itself."""
    site.apply(resource("llama", apiKeySecretRef={"name": "keys", "key": "clients"}))
    site.wait_built("llama")
    site.serve("llama", router=0)
    container = {"name": "engine", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
    state = {**container, "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod = site.put_pod("llama-router-1", "llama", "router", {"containerStatuses": [state]})
    event = {
        "metadata": {"generateName": "llama-router-1."},
        "involvedObject": {"kind": "Pod", "name": "llama-router-1", "namespace": site.namespace, "uid": pod},
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "keys": secret "keys" not found',
        "lastTimestamp": "2026-11-30T00:00:00Z",
    }
    site.must("POST", site.path("events"), event)
    site.edit("dinf", "llama", {"metadata": {"labels": {"look": "now"}}})
    told = site.wait_condition("llama", "Degraded", "True", "PodFailing")
    assert 'secret "keys" not found' in told["message"]
