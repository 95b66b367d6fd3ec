"""Every state that a resource can be in, brought about by the real operator, with what kstatus has to say of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.manifests import at, resource
from api.operator_runs.site import Site
from api.operator_runs.test_scaling import SCALERS, settle
from router.programs import eventually

Json = dict[str, Any]


@dataclass(frozen=True)
class State:
    """How a resource called `llama` gets there, and kstatus' word for it."""

    make: Callable[[Site], Json]
    kstatus: str


def _look(site: Site) -> Json:
    """The resource, once its status rests."""
    site.wait_quiet("llama")
    return site.live("dinf", "llama")


def unseen(site: Site) -> Json:
    site.apply(resource("llama"))
    return site.live("dinf", "llama")


def building(site: Site) -> Json:
    with site.operator():
        site.apply(resource("llama"))
        site.wait_built("llama")
        return _look(site)


def ready(site: Site) -> Json:
    with site.operator():
        settle(site)
        return _look(site)


def behind(site: Site) -> Json:
    """The spec has changed, and no operator is there to see it."""
    with site.operator():
        settle(site)
    site.apply(resource("llama", decode={"replicas": 2}))
    return site.live("dinf", "llama")


def rolling(site: Site) -> Json:
    with site.operator():
        settle(site, decode={"replicas": 2})
        site.apply(resource("llama", decode={"replicas": 2, "image": "engine:other"}))
        site.wait_condition("llama", "Ready", "False", "DecodeNotReady")
        site.report("llama-decode", 2, "ReplicaSetUpdated", replicas=3, updatedReplicas=1)
        eventually(lambda: "of an old revision" in site.condition("llama", "Ready").get("message", ""), "it rolls")
        return _look(site)


def pending(site: Site) -> Json:
    """A first pod waits for a node, as it does where nodes are made on demand."""
    with site.operator():
        site.apply(resource("llama"))
        site.wait_built("llama")
        site.report("llama-decode", 0, "ReplicaSetUpdated")
        told = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: insufficient GPUs"}
        site.put_pod("llama-decode-1", "llama", "decode", {"conditions": [told]})
        site.wait_condition("llama", "Degraded", "True", "PodFailing")
        return _look(site)


def lost(site: Site) -> Json:
    with site.operator():
        settle(site)
        site.report("llama-prefill", 0)
        site.wait_condition("llama", "Degraded", "True", "PrefillNotReady")
        return _look(site)


def crashing(site: Site) -> Json:
    with site.operator():
        settle(site)
        site.report("llama-decode", 0)
        ended = {"exitCode": 1, "reason": "Error", "message": "ValueError: no such quantization"}
        container = {"name": "engine", "image": "none", "imageID": "", "ready": False, "restartCount": 3}
        state = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
        site.put_pod("llama-decode-1", "llama", "decode", {"containerStatuses": [{**container, **state}]})
        site.wait_condition("llama", "Degraded", "True", "PodFailing")
        return _look(site)


def stuck(site: Site) -> Json:
    with site.operator():
        site.apply(resource("llama"))
        site.wait_built("llama")
        site.report("llama-decode", 0, "ProgressDeadlineExceeded")
        site.wait_condition("llama", "Stalled", "True", "ProgressDeadlineExceeded")
        return _look(site)


def invalid(site: Site) -> Json:
    """The spec cannot be built; what an earlier one made goes on running."""
    with site.operator():
        settle(site)
        site.apply(resource("llama", **at("prefill.resources", {"limits": {"memory": "1Gi"}})))
        site.wait_condition("llama", "Stalled", "True", "InvalidSpec")
        return _look(site)


def refused(site: Site) -> Json:
    with site.operator():
        site.apply(resource("llama", **at("decode.template", {"spec": {"nodeSelector": {"pool": "not a label"}}})))
        site.wait_condition("llama", "Stalled", "True", "ChildRefused")
        return _look(site)


def in_the_way(site: Site) -> Json:
    """Somebody else's object has the name of a child."""
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "llama-mooncake-config"}}
    site.must("POST", site.path("configmaps"), theirs)
    with site.operator():
        site.apply(resource("llama"))
        site.wait_condition("llama", "Ready", "False", "ResourceConflict")
        return _look(site)


def without_prefill(site: Site) -> Json:
    with site.operator():
        settle(site, prefill={"replicas": 0})
        site.wait_condition("llama", "KVSharing", "False", "PrefillScaledToZero")
        return _look(site)


def without_decode(site: Site) -> Json:
    with site.operator():
        settle(site, decode={"replicas": 0})
        site.wait_condition("llama", "Ready", "True", "Suspended")
        return _look(site)


def waking(site: Site) -> Json:
    """Decode was scaled up from zero, and its first pod is not ready yet."""
    with site.operator():
        settle(site, decode={"replicas": 0})
        site.apply(resource("llama", decode={"replicas": 1}))
        eventually(lambda: site.live("deployments", "llama-decode")["spec"]["replicas"] == 1, "it is scaled")
        site.report("llama-decode", 0)
        site.wait_condition("llama", "Degraded", "True", "DecodeNotReady")
        return _look(site)


def held(site: Site) -> Json:
    """A scaler asks for more than the ratio of the roles allows."""
    with site.operator():
        settle(site, prefill={"scaling": {}}, decode={"scaling": {}}, scaling={"ratio": {"min": 0.25}})
        site.edit(SCALERS, "llama-decode", {"spec": {"replicas": 6}}, "scale")
        site.wait_condition("llama", "ScalingLimited", "True", "RatioGuard")
        site.serve("llama")
        site.wait_condition("llama", "Ready", "True")
        return _look(site)


def outdated(site: Site) -> Json:
    """The operator has newer images."""
    with site.operator():
        settle(site)
    with site.operator(images={"engine-image-cuda": "engine:2"}):
        site.wait_condition("llama", "UpdateAvailable", "True")
        return _look(site)


def leaving(site: Site) -> Json:
    """It is being deleted, and somebody's finalizer keeps it for a while."""
    with site.operator():
        settle(site)
        site.edit("dinf", "llama", {"metadata": {"finalizers": ["example.org/hold"]}})
        site.delete("dinf", "llama")
        return site.live("dinf", "llama")


STATES = {
    "unseen": State(unseen, "InProgress"),
    "building": State(building, "InProgress"),
    "pending": State(pending, "InProgress"),
    "ready": State(ready, "Current"),
    "behind": State(behind, "InProgress"),
    "rolling": State(rolling, "InProgress"),
    "lost": State(lost, "InProgress"),
    "crashing": State(crashing, "InProgress"),
    "stuck": State(stuck, "Failed"),
    "invalid": State(invalid, "Failed"),
    "refused": State(refused, "Failed"),
    "in-the-way": State(in_the_way, "InProgress"),
    "without-prefill": State(without_prefill, "Current"),
    "without-decode": State(without_decode, "Current"),
    "waking": State(waking, "InProgress"),
    "held": State(held, "Current"),
    "outdated": State(outdated, "Current"),
    "leaving": State(leaving, "Terminating"),
}
