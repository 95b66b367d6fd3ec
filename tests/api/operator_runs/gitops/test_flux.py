"""What Flux's kustomize-controller does, with its own library, beside the operator; and other managers beside both."""

import json
from typing import Any

import pytest
import yaml
from api.conftest import ROOT
from api.manifests import API_VERSION, KIND, at
from api.operator_runs.gitops.tools import Flux, FluxError
from api.operator_runs.site import Operator, Site
from api.operator_runs.test_scaling import SCALERS
from demo.kubectl import Kubectl, KubectlError
from router.programs import eventually

Json = dict[str, Any]
NOT_YET = "status: 'InProgress'"


def example(name: str, **spec: Any) -> Json:
    """The resource of an example, with some fields of its spec replaced."""
    manifest: Json = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    return {**manifest, "spec": {**manifest["spec"], **spec}}


def runs(site: Site, deployment: str) -> int:
    return int(site.live("deployments", deployment)["spec"]["replicas"])


def settle(site: Site, flux: Flux, manifest: Json) -> None:
    """Have a resource applied by Flux, and its pods ready."""
    name = manifest["metadata"]["name"]
    flux.apply(manifest)
    site.wait_built(name)
    site.serve(name)
    flux.wait(manifest)
    site.wait_quiet(name)


def test_flux_waits_for_one_that_nobody_has_seen(site: Site, flux: Flux) -> None:
    manifest = example("minimal")
    assert flux.apply(manifest) == "created"
    with pytest.raises(FluxError, match=NOT_YET):
        flux.wait(manifest, seconds=2)


def test_flux_waits_until_it_is_ready_and_then_finds_nothing_to_do(site: Site, operator: Operator, flux: Flux) -> None:
    manifest = example("minimal")
    assert flux.apply(manifest) == "created"
    site.wait_built("qwen")
    with pytest.raises(FluxError, match=NOT_YET):
        flux.wait(manifest, seconds=2)
    site.serve("qwen")
    flux.wait(manifest)
    assert site.condition("qwen", "Ready")["status"] == "True"
    written = len(flux.writes(site))
    assert written > 0
    site.report("qwen-prefill", 0)
    site.wait_condition("qwen", "Degraded", "True")
    assert flux.apply(manifest) == "unchanged", "a status is no drift"
    assert len(flux.writes(site)) == written


def test_a_scaled_role_is_no_drift(site: Site, operator: Operator, flux: Flux) -> None:
    manifest = example("autoscaling")
    settle(site, flux, manifest)
    written = len(flux.writes(site))
    site.edit(SCALERS, "llama-decode", {"spec": {"replicas": 4}}, "scale")
    eventually(lambda: runs(site, "llama-decode") == 4, "it is scaled")
    assert flux.apply(manifest) == "unchanged"
    assert len(flux.writes(site)) == written
    site.serve("llama")
    flux.wait(manifest)
    assert (site.live(SCALERS, "llama-decode")["spec"]["replicas"], runs(site, "llama-decode")) == (4, 4)


def test_what_was_changed_by_hand_is_put_back_and_the_operator_follows(
    site: Site, operator: Operator, flux: Flux
) -> None:
    manifest = example("minimal", decode={"replicas": 2})
    settle(site, flux, manifest)
    site.edit("dinf", "qwen", {"spec": {"decode": {"replicas": 5}}})
    eventually(lambda: runs(site, "qwen-decode") == 5, "the operator follows the hand")
    assert flux.apply(manifest) == "configured"
    assert site.live("dinf", "qwen")["spec"]["decode"]["replicas"] == 2
    eventually(lambda: runs(site, "qwen-decode") == 2, "the operator follows Git")


def test_a_field_that_kubectl_added_goes_again(site: Site, operator: Operator, flux: Flux, kubectl: Kubectl) -> None:
    """Flux takes over what was written with kubectl, and so removes what Git does not have."""
    manifest = example("minimal")
    settle(site, flux, manifest)
    kubectl.patch("dinf", "qwen", site.namespace, {"spec": {"router": {"replicas": 3}}})
    eventually(lambda: runs(site, "qwen-router") == 3, "the operator follows kubectl")
    assert flux.apply(manifest) == "configured"
    eventually(lambda: runs(site, "qwen-router") == 1, "the operator follows Git")
    assert flux.apply(manifest) == "unchanged"


def test_flux_fails_at_once_where_waiting_is_of_no_use_and_believes_no_old_failure(
    site: Site, operator: Operator, flux: Flux
) -> None:
    wrong = example("minimal", **at("prefill.resources", {"limits": {"memory": "1Gi"}}))
    flux.apply(wrong)
    with pytest.raises(FluxError, match=r"failed early due to stalled resources.*status: 'Failed'"):
        flux.wait(wrong)
    operator.program.end()
    right = example("minimal")
    assert flux.apply(right) == "configured"
    with pytest.raises(FluxError, match=NOT_YET):
        flux.wait(right, seconds=2)
    with site.operator():
        settle(site, flux, right)


def test_what_leaves_git_leaves_the_cluster(site: Site, operator: Operator, flux: Flux) -> None:
    manifest = example("minimal")
    settle(site, flux, manifest)
    flux.prune(manifest)
    assert site.get("dinf", "qwen") is None
    eventually(lambda: not site.children("qwen"), "all children are gone", 60)
    assert "Traceback" not in operator.log


def test_another_manager_may_have_a_field_of_its_own(
    site: Site, operator: Operator, flux: Flux, kubectl: Kubectl
) -> None:
    manifest = example("minimal")
    settle(site, flux, manifest)
    tune(kubectl, site, 4)
    eventually(lambda: runs(site, "qwen-decode") == 4, "the operator follows")
    assert flux.apply(manifest) == "unchanged"
    site.serve("qwen")
    flux.wait(manifest)
    version = site.live("dinf", "qwen")["metadata"]["resourceVersion"]
    tune(kubectl, site, 4)
    live = site.live("dinf", "qwen")
    assert (live["metadata"]["resourceVersion"], live["spec"]["decode"]["replicas"]) == (version, 4)
    managers = {(entry["manager"], entry.get("subresource", "")) for entry in live["metadata"]["managedFields"]}
    ours = ("disaggregated-inference-operator", "status")
    assert managers == {("kustomize-controller", ""), ("tuning", ""), ours}


def test_two_managers_of_one_field_are_told_of_each_other(
    site: Site, operator: Operator, flux: Flux, kubectl: Kubectl
) -> None:
    settle(site, flux, example("minimal", decode={"replicas": 2}))
    with pytest.raises(KubectlError, match=r'conflict with "kustomize-controller".*\.spec\.decode\.replicas'):
        tune(kubectl, site, 4)
    assert runs(site, "qwen-decode") == 2


def tune(kubectl: Kubectl, site: Site, replicas: int) -> None:
    """Another manager wishes a count of decode."""
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "qwen"}}
    text = json.dumps({**body, "spec": {"decode": {"replicas": replicas}}})
    kubectl.run("apply", "--server-side", "--field-manager=tuning", "-n", site.namespace, "-f", "-", stdin=text)
