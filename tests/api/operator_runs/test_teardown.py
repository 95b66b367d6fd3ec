"""Whatever goes first - the resource, the operator, the namespace, the definition - nothing sticks and nothing is left.

On an API server with Kubernetes' own controllers for Deployments, so that there are ReplicaSets and pods to be left.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from api.conftest import install_crd, install_scaler_crd
from api.manifests import resource
from api.operator_runs.kubelet import kept_running, pods_become_ready
from api.operator_runs.site import Site, holds_for
from api.operator_runs.test_quiet import count, is_up, neighbour
from demo.kubectl import Kubectl, KubectlError
from router.programs import eventually

SCALED = {"scaling": {"minReplicas": 2}}
CRDS = ("disaggregatedinferences", "disaggregatedinferencescalers")
# Not of a resource: what the test and the server themselves put into a namespace.
FOREIGN = ("event", "lease", "configmap/kube-root-ca.crt", "serviceaccount/default")


def leftovers(site: Site, kubectl: Kubectl) -> set[str]:
    """All that is in the namespace, of whatever kind, but for what is no resource's."""
    kinds = kubectl.run("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    try:
        found = kubectl.run("get", ",".join(kinds), "-n", site.namespace, "-o", "name", "--ignore-not-found").split()
    except KubectlError as error:
        return {f"not known: {error}"}  # A kind went between the two calls.
    rights = f"/operator-{site.namespace}"
    return {name for name in found if not name.startswith(FOREIGN) and not name.endswith(rights)}


def cluster_scoped(kubectl: Kubectl) -> set[str]:
    """All that is in no namespace, but for namespaces."""
    kinds = kubectl.run("api-resources", "--namespaced=false", "--verbs=list", "-o", "name").split()
    return set(kubectl.run("get", ",".join({*kinds} - {"namespaces"}), "-o", "name").split())


def serve(site: Site, name: str = "llama") -> None:
    """A resource that is Ready, its pods there."""
    site.apply(resource(name, prefill={"replicas": 1}, decode=SCALED))
    site.wait_condition(name, "Ready", "True", seconds=60)


@pytest.mark.parametrize(
    "running", [True, pytest.param(False, marks=pytest.mark.long)], ids=["operator-runs", "operator-stopped"]
)
def test_foreground_deletion_ends_and_leaves_nothing(spare: Site, spare_kubectl: Kubectl, *, running: bool) -> None:
    with pods_become_ready(spare), spare.operator() as operator:
        serve(spare)
        assert {name.partition("/")[0] for name in leftovers(spare, spare_kubectl)} >= {"pod", "replicaset.apps"}
        if not running:
            operator.program.end()
        spare.delete("dinf", "llama", "Foreground")
        eventually(lambda: spare.get("dinf", "llama") is None, "the resource is gone", 60)
        eventually(lambda: not leftovers(spare, spare_kubectl), "nothing is left", 60)


def test_deleted_while_it_is_being_built_it_leaves_nothing(spare: Site, spare_kubectl: Kubectl) -> None:
    """At any moment between the first child and the last."""
    with spare.operator() as operator:
        eventually(lambda: is_up(operator), "it is up")
        for number, pause in enumerate((0.0, 0.05, 0.1, 0.2, 0.4, 0.8)):
            spare.apply(resource(f"model-{number}", decode=SCALED))
            time.sleep(pause)
            spare.delete("dinf", f"model-{number}")
        eventually(lambda: not leftovers(spare, spare_kubectl), "nothing is left", 60)
        assert holds_for(lambda: not leftovers(spare, spare_kubectl), 2), "nothing comes after it"
        eventually(lambda: count(operator, "disaggregatedinference_failing_resources") == 0, "nothing is tried again")


@pytest.mark.long
def test_orphans_are_left_alone_and_go_by_their_label(spare: Site, spare_kubectl: Kubectl) -> None:
    """`kubectl delete --cascade=orphan`: whoever asks for it wants the children to go on."""
    wait_until_scalers_are_collected(spare)
    with pods_become_ready(spare), spare.operator():
        serve(spare)
        spare.delete("dinf", "llama", "Orphan")
        eventually(lambda: spare.get("dinf", "llama") is None, "the resource is gone", 60)
        left = spare.children("llama")
        assert {("deployments", "llama-decode"), ("services", "llama-router")} <= left.keys()
        assert all("ownerReferences" not in child["metadata"] for child in left.values())
        writes = len(spare.writes())
        assert holds_for(lambda: spare.children("llama").keys() == left.keys(), 2)
        assert len(spare.writes()) == writes
        kinds = ",".join({kind for kind, _ in left})
        spare_kubectl.run("delete", kinds, "-l", "inference.disagg.io/name=llama", "-n", spare.namespace)
        eventually(lambda: not leftovers(spare, spare_kubectl), "nothing is left", 60)


@pytest.mark.long
def test_orphans_come_home_to_a_resource_of_their_name(spare: Site, spare_kubectl: Kubectl) -> None:
    """The way to replace a resource without an engine's restart. Somebody else's object would be in the way."""
    wait_until_scalers_are_collected(spare)
    with pods_become_ready(spare), spare.operator():
        serve(spare)
        before = spare.children("llama")
        pods = pod_uids(spare)
        spare.delete("dinf", "llama", "Orphan")
        eventually(lambda: spare.get("dinf", "llama") is None, "the resource is gone", 60)
    # A newer operator, which would build with other images.
    with pods_become_ready(spare), spare.operator(images={"engine-image-cuda": "engine:2"}):
        serve(spare)
        spare.wait_quiet("llama")
        uid = spare.live("dinf", "llama")["metadata"]["uid"]
        after = spare.children("llama")
        assert after.keys() == before.keys()
        assert {child["metadata"]["ownerReferences"][0]["uid"] for child in after.values()} == {uid}
        assert {child["metadata"]["uid"] for child in after.values()} == {c["metadata"]["uid"] for c in before.values()}
        assert pod_uids(spare) == pods, "no engine was started again"
        spare.delete("dinf", "llama", "Foreground")
        eventually(lambda: not leftovers(spare, spare_kubectl), "nothing is left", 60)


def wait_until_scalers_are_collected(site: Site) -> None:
    """Wait until the garbage collector follows scalers: it takes the owner off what it follows alone."""
    owner = {
        "apiVersion": "inference.disagg.io/v1alpha1",
        "kind": "DisaggregatedInference",
        "name": "none",
        "uid": "none",
    }
    body = {
        "apiVersion": "inference.disagg.io/v1alpha1",
        "kind": "DisaggregatedInferenceScaler",
        "metadata": {"name": "probe", "ownerReferences": [owner]},
        "spec": {"role": "decode", "resource": "none", "replicas": 0},
    }
    site.must("POST", site.path("disaggregatedinferencescalers"), body)
    eventually(lambda: site.get("disaggregatedinferencescalers", "probe") is None, "the probe is collected", 90)


def pod_uids(site: Site) -> set[str]:
    return {pod["metadata"]["uid"] for pod in site.must("GET", site.path("pods"))["items"]}


def test_a_deleted_namespace_goes_and_the_others_are_served_on(spare: Site, spare_kubectl: Kubectl) -> None:
    """Field case C28."""
    home, other = neighbour(spare, "home"), neighbour(spare, "other")
    home.grant_everywhere()
    with home.operator(everywhere=True) as operator, pods_become_ready(spare):
        other.apply(resource("llama"))
        other.wait_built("llama")
        before = cluster_scoped(spare_kubectl)
        for name in ("llama", "qwen"):
            serve(spare, name)
        spare_kubectl.run("delete", "namespace", spare.namespace, "--timeout=90s")
        eventually(lambda: cluster_scoped(spare_kubectl) <= before, "nothing of it is left in the cluster at large")
        assert is_served(other)
        assert operator.program.running
        eventually(lambda: count(operator, "disaggregatedinference_failing_resources") == 0, "nothing is tried again")


def is_served(site: Site) -> bool:
    """Whether an edit is acted on. Raises AssertionError when it is not."""
    known = site.get("deployments", "llama-decode")
    wished = 1 if known is None else 1 + known["spec"]["replicas"] % 3
    site.apply(resource("llama", decode={"replicas": wished}))
    eventually(lambda: (site.get("deployments", "llama-decode") or known) != known, "an edit is acted on", 60)
    eventually(lambda: bool(site.live("deployments", "llama-decode")["spec"]["replicas"] == wished), "as wished")
    return True


def test_one_of_two_namespaces_goes_and_comes_with_rights_in_those_alone(spare: Site, spare_kubectl: Kubectl) -> None:
    """Field cases C28 and C98: what goes takes the operator's Role along."""
    other = neighbour(spare, "other")
    other.grant(to=spare.user)
    both = (f"--watch-namespace={other.namespace}", "--resync-seconds=2")
    with spare.operator(*both) as operator:
        for site in (spare, other):
            site.apply(resource("llama"))
            site.wait_built("llama")
        spare_kubectl.run("delete", "namespace", other.namespace, "--timeout=90s")
        unread = f"namespace {other.namespace} cannot be read"
        eventually(lambda: unread in operator.log, "it is told")
        assert is_served(spare)
        assert is_up(operator)
        assert operator.log.count(unread) == 1
    with spare.operator(*both) as second:
        assert is_served(spare)
        assert is_up(second)
        assert second.log.count(unread) == 1
        other.must("POST", "/api/v1/namespaces", {"metadata": {"name": other.namespace}})
        other.grant(to=spare.user)
        assert second.program.wait(30) == 0, "it ends, to be started again"
    with spare.operator(*both) as third:
        assert is_served(other)
        assert "cannot be read" not in third.log


@contextmanager
def deletions_denied(site: Site, resource: str, example: str) -> Iterator[None]:
    """Admission denies that objects of a kind are deleted in the namespace, for as long as the block runs."""
    name = f"keep-{site.namespace}"
    root = "/apis/admissionregistration.k8s.io/v1/"
    group, _, plural = resource.rpartition("/")
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["DELETE"], "resources": [plural]}
    validation = {"expression": f"request.namespace != '{site.namespace}'", "message": "kept by the platform team"}
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation], "failurePolicy": "Fail"}
    for kind, spec in (
        ("validatingadmissionpolicies", policy),
        ("validatingadmissionpolicybindings", {"policyName": name, "validationActions": ["Deny"]}),
    ):
        site.must("POST", root + kind, {"metadata": {"name": name}, "spec": spec})

    def is_denied() -> bool:
        path = site.path(plural, example) + "?dryRun=All"
        return "kept by the platform team" in site.rest.ask("DELETE", path).message

    try:
        eventually(is_denied, "the policy is in force")
        yield
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            site.must("DELETE", f"{root}{kind}/{name}")
    eventually(lambda: not is_denied(), "the policy is gone")


@pytest.mark.long
@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_a_child_that_may_not_be_deleted_goes_when_it_may(spare: Site, spare_kubectl: Kubectl, policy: str) -> None:
    """Field case C40."""
    with spare.operator():
        spare.apply(resource("llama"))
        spare.wait_built("llama")
        with deletions_denied(spare, "services", "llama-master"):
            spare.delete("dinf", "llama", policy)
            eventually(lambda: spare.get("deployments", "llama-master") is None, "other children go", 60)
            assert spare.get("services", "llama-master") is not None
        eventually(lambda: not leftovers(spare, spare_kubectl), "nothing is left", 90)


def test_a_part_that_may_not_be_pruned_is_told_and_goes_when_it_may(spare: Site) -> None:
    """Field case C40, where it is the operator that deletes."""
    with spare.operator():
        spare.apply(resource("llama", prefill={"replicas": 2}))
        spare.wait_built("llama")
        with deletions_denied(spare, "policy/poddisruptionbudgets", "llama-prefill"):
            spare.apply(resource("llama"))
            told = spare.wait_condition("llama", "Ready", "False", "Forbidden")
            assert "deletion of PodDisruptionBudget/llama-prefill" in told["message"]
            assert "kept by the platform team" in told["message"]
            assert spare.live("deployments", "llama-prefill")["spec"]["replicas"] == 1, "it keeps no other back"
            events = spare.must("GET", spare.path("events"))["items"]
            (told_once,) = [event for event in events if event["reason"] == "Forbidden"]
            assert "kept by the platform team" in told_once["message"]
        eventually(lambda: spare.get("poddisruptionbudgets", "llama-prefill") is None, "it goes", 90)
        eventually(lambda: spare.condition("llama", "Ready")["reason"] != "Forbidden", "it is told no more")


# The garbage collector takes half a minute to know a kind.
@pytest.mark.long
@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster-wide", "one-namespace"])
def test_the_definition_goes_first_and_comes_back(spare: Site, spare_kubectl: Kubectl, *, everywhere: bool) -> None:
    """All resources and all their children go with it. An operator that ends over it is started again, and serves."""
    home = neighbour(spare, "home")
    home.grant_everywhere()
    watches = home if everywhere else spare
    with kept_running(watches, "--resync-seconds=2", everywhere=everywhere) as started, pods_become_ready(spare):
        serve(spare)
        # The garbage collector looks for new kinds twice a minute, and could not judge owners of a kind it never knew.
        wait_for_garbage_collector(spare)
        spare_kubectl.run("delete", "crd", *(f"{name}.inference.disagg.io" for name in CRDS), "--timeout=60s")
        eventually(lambda: not leftovers(spare, spare_kubectl), "nothing is left", 90)
        install(spare_kubectl)
        assert is_served(spare)
        eventually(lambda: is_up(started[-1]), "it is healthy")
        assert len(started) <= 3, [operator.log[-2000:] for operator in started]


def wait_for_garbage_collector(site: Site) -> None:
    """Wait until the garbage collector follows the kind of resources: then it ends a foreground deletion."""
    site.apply(resource("probe", prefill={"replicas": 0}, decode={"replicas": 0}))
    site.delete("dinf", "probe", "Foreground")
    eventually(lambda: site.get("dinf", "probe") is None, "a foreground deletion ends", 90)


def install(kubectl: Kubectl) -> None:
    install_crd(kubectl)
    install_scaler_crd(kubectl)


@pytest.mark.long
def test_an_operator_that_was_there_before_the_definition_serves_when_it_comes(
    spare: Site, spare_kubectl: Kubectl
) -> None:
    spare_kubectl.run("delete", "crd", *(f"{name}.inference.disagg.io" for name in CRDS), "--timeout=60s")
    home = neighbour(spare, "home")
    home.grant_everywhere()
    with home.operator(everywhere=True) as operator:
        eventually(lambda: is_up(operator), "it is up")
        install(spare_kubectl)
        assert is_served(spare)
        assert operator.program.running
