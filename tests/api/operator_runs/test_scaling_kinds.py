"""Scaling where a kind is missing at first and comes later, and by Kubernetes' own autoscaler.

An API server of its own: the CRDs that it lacks, others need.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.conftest import install_crd, install_scaler_crd
from api.manifests import resource
from api.operator_runs.cpu_use import cpu_use, put_ready_pod
from api.operator_runs.site import Site
from api.operator_runs.test_scaling import AUTOSCALERS, BY_CPU, SCALERS, runs, scale, settle, warnings, wished
from api.rest import Rest
from cluster import apiserver, paths
from cluster.apiserver import ApiServer
from demo.kubectl import Kubectl
from router.programs import eventually

Json = dict[str, Any]
_OBJECT: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
# As little of KEDA's definition as makes the kind known: its own is not at hand here.
SCALED_OBJECTS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {"kind": "ScaledObject", "plural": "scaledobjects", "singular": "scaledobject"},
        "versions": [
            {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _OBJECT}},
        ],
    },
}

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiServer, Kubectl]]:
    """An API server with the CRD of resources alone, and with Kubernetes' autoscaler."""
    controllers = ["garbage-collector-controller", "namespace-controller", "horizontal-pod-autoscaler-controller"]
    # By default it looks every 15 s.
    often = ["--horizontal-pod-autoscaler-sync-period=2s"]
    directory = tmp_path_factory.mktemp("apiserver")
    with apiserver.start(directory, controllers=controllers, controller_flags=often) as server:
        kubectl = Kubectl(paths.binary("kubectl"), server.kubeconfig)
        install_crd(kubectl)
        yield server, kubectl


@pytest.fixture
def place(bare: tuple[ApiServer, Kubectl], tmp_path: Path) -> Site:
    """A namespace of that server."""
    server, kubectl = bare
    site = Site(server, Rest(server), f"place-{next(_numbers)}", tmp_path)
    kubectl.run("create", "namespace", site.namespace)
    site.grant()
    return site


def test_without_the_scalers_definition_others_are_served_and_it_may_come_later(
    place: Site, bare: tuple[ApiServer, Kubectl]
) -> None:
    _, kubectl = bare
    kubectl.run("delete", "crd", "disaggregatedinferencescalers.inference.disagg.io", "--ignore-not-found")
    with place.operator("--resync-seconds=1") as operator:
        place.apply(resource("other"))
        place.apply(resource("llama", decode={"scaling": {}}))
        told = place.wait_condition("llama", "Stalled", "True", "InvalidSpec")
        assert "no DisaggregatedInferenceScaler" in told["message"]
        eventually(lambda: place.get("deployments", "other-decode") is not None, "the other is served")
        install_scaler_crd(kubectl)
        eventually(lambda: place.get("deployments", "llama-decode") is not None, "it is built now", 60)
        scale(kubectl, place, "dinfs/llama-decode", 2)
        eventually(lambda: runs(place) == 2, "it is scaled")
        assert operator.program.running


def test_kubernetes_own_autoscaler_scales_a_role(place: Site, bare: tuple[ApiServer, Kubectl]) -> None:
    """Field case C83. No metrics API runs here; that a count is below the lower bound the autoscaler sees without."""
    install_scaler_crd(bare[1])
    scaling = {"minReplicas": 1, "maxReplicas": 6, "metrics": [BY_CPU]}
    with place.operator():
        settle(place, decode={"scaling": scaling})
        place.apply(resource("llama", decode={"scaling": {**scaling, "minReplicas": 3}}))
        eventually(lambda: wished(place) == 3, "the autoscaler writes the scaler", 120)
        eventually(lambda: runs(place) == 3, "the Deployment follows")
        place.serve("llama")
        place.wait_condition("llama", "Ready", "True")

        def told() -> Json:
            status: Json = place.live(AUTOSCALERS, "llama-decode").get("status", {})
            return status

        eventually(lambda: told().get("currentReplicas") == 3, "it reads the scaler's status", 60)
        able = [one["status"] for one in told()["conditions"] if one["type"] == "AbleToScale"]
        assert able == ["True"]


def test_two_autoscalers_read_and_move_a_role_each(place: Site, bare: tuple[ApiServer, Kubectl]) -> None:
    """Field case C83: each sees its own role's pods, and neither moves the other's."""
    server, kubectl = bare
    install_scaler_crd(kubectl)
    target = {"type": "Utilization", "averageUtilization": 80}
    by_cpu = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    scaling = {"scaling": {"minReplicas": 1, "maxReplicas": 10, "metrics": [by_cpu]}}
    with cpu_use(server) as use, place.operator():
        settle(place, prefill=scaling, decode=scaling)
        for role, thousandths in (("prefill", 800), ("decode", 2400)):
            use[put_ready_pod(place, "llama", role)] = thousandths
        eventually(lambda: wished(place) == 3, "three times the target are three pods", 60)
        eventually(lambda: runs(place) == 3, "the Deployment follows")
        for role, percent in (("prefill", 80), ("decode", 240)):
            status = place.live(AUTOSCALERS, f"llama-{role}")["status"]
            assert status["currentMetrics"][0]["resource"]["current"]["averageUtilization"] == percent
            told = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
            assert told["ScalingActive"] == ("True", "ValidMetricFound")
            assert told["AbleToScale"][0] == "True"
        assert (wished(place, "prefill"), runs(place, "prefill")) == (1, 1)


def test_an_autoscaler_of_a_deployment_is_sent_to_the_right_target(
    place: Site, bare: tuple[ApiServer, Kubectl]
) -> None:
    """Field case C82: what it writes is put back, each time, and the event names what can be scaled."""
    install_scaler_crd(bare[1])
    with place.operator():
        settle(place, decode={"scaling": {}})
        autoscaler = ("autoscale", "deployment/llama-decode", "--min=2", "--max=5", "--cpu=80%")
        bare[1].run(*autoscaler, "-n", place.namespace)
        eventually(lambda: bool(warnings(place, "ScaledElsewhere")), "it is told", 60)
        (told,) = warnings(place, "ScaledElsewhere")
        assert told.startswith("Deployment/llama-decode was scaled to 2 by ")
        assert told.endswith(" and is put back to 1; scale dinfs/llama-decode instead")
        bare[1].run("delete", "hpa", "llama-decode", "-n", place.namespace)
        eventually(lambda: runs(place) == 1, "it is put back")


def install_keda_crd(kubectl: Kubectl) -> None:
    kubectl.apply(SCALED_OBJECTS)
    eventually(lambda: "scaledobjects" in kubectl.run("api-resources", "--api-group=keda.sh").split(), "it is served")


def test_one_autoscaler_goes_before_the_other_comes(place: Site, bare: tuple[ApiServer, Kubectl]) -> None:
    """KEDA's webhook refuses a ScaledObject for what a HorizontalPodAutoscaler moves, and nothing is pruned then."""
    _, kubectl = bare
    install_scaler_crd(kubectl)
    install_keda_crd(kubectl)
    bounds = {"minReplicas": 1, "maxReplicas": 4}
    with place.operator():
        settle(place, decode={"scaling": {**bounds, "metrics": [BY_CPU]}})
        place.apply(resource("llama", decode={"scaling": {**bounds, "keda": {"triggers": [{"type": "cron"}]}}}))
        eventually(lambda: kubectl.get("scaledobjects", "llama-decode", place.namespace) is not None, "it is made")
        written = [(event["verb"], event["objectRef"]["resource"]) for event in place.writes()]
        assert written.index(("delete", AUTOSCALERS)) < written.index(("patch", "scaledobjects"))


def test_keda_gets_an_object_that_goes_with_the_wish(place: Site, bare: tuple[ApiServer, Kubectl]) -> None:
    _, kubectl = bare
    install_scaler_crd(kubectl)
    install_keda_crd(kubectl)
    keda = {"triggers": [{"type": "cron", "metadata": {"timezone": "UTC"}}], "cooldownPeriod": 5}

    def found() -> Json:
        return kubectl.get("scaledobjects", "llama-decode", place.namespace) or {}

    with place.operator():
        place.apply(resource("llama", decode={"scaling": {"minReplicas": 0, "maxReplicas": 4, "keda": keda}}))
        eventually(lambda: bool(found()), "it is made")
        target = {"apiVersion": "inference.disagg.io/v1alpha1", "kind": "DisaggregatedInferenceScaler"}
        bounds = {"minReplicaCount": 0, "maxReplicaCount": 4}
        assert found()["spec"] == {"scaleTargetRef": {**target, "name": "llama-decode"}, **bounds, **keda}
        place.wait_quiet("llama")
        writes, version = len(place.writes()), found()["metadata"]["resourceVersion"]
        place.edit("dinf", "llama", {"metadata": {"labels": {"look": "now"}}})
        place.wait_quiet("llama")
        assert (place.writes()[writes:], found()["metadata"]["resourceVersion"]) == ([], version)
        place.apply(resource("llama", decode={"replicas": 1}))
        eventually(lambda: not found(), "it goes")
        eventually(lambda: place.get(SCALERS, "llama-decode") is None, "and the scaler")
