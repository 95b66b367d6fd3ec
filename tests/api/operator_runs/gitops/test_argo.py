"""What Argo CD looks at: differences after an apply, its marks of what it tracks, and deletion in its order.

Argo CD compares as `kubectl diff` does: with the last applied configuration, or by a server-side dry run.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from api.conftest import ROOT
from api.manifests import resource
from api.operator_runs.site import Operator, Site
from api.operator_runs.test_scaling import BY_CPU
from cluster.apiserver import ApiServer
from demo.kubectl import Kubectl, KubectlError
from router.programs import eventually
from unit.gitops.lua import SCRIPT

Json = dict[str, Any]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
CLIENT_SIDE = ("--server-side=false",)
SERVER_SIDE = ("--server-side", "--field-manager=argocd-controller", "--force-conflicts")
INSTANCE, TRACKING = "app.kubernetes.io/instance", "argocd.argoproj.io/tracking-id"


def diff(kubectl: Kubectl, site: Site, style: tuple[str, ...], path: Path) -> None:
    """Raises KubectlError with the difference where there is one."""
    kubectl.run("diff", *style, "-n", site.namespace, "-f", str(path))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_what_was_applied_shows_no_difference(site: Site, operator: Operator, kubectl: Kubectl, path: Path) -> None:
    name = yaml.safe_load(path.read_text())["metadata"]["name"]
    for style in (CLIENT_SIDE, SERVER_SIDE):
        kubectl.run("apply", *style, "-n", site.namespace, "-f", str(path))
        site.wait_quiet(name)
        diff(kubectl, site, style, path)
    diff(kubectl, site, CLIENT_SIDE, path)


@pytest.mark.parametrize("style", [CLIENT_SIDE, SERVER_SIDE], ids=["client-side", "server-side"])
def test_what_was_changed_by_hand_shows(
    site: Site, operator: Operator, kubectl: Kubectl, style: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "llama.yaml"
    path.write_text(json.dumps(resource("llama", decode={"replicas": 2})))
    kubectl.run("apply", *style, "-n", site.namespace, "-f", str(path))
    site.edit("dinf", "llama", {"spec": {"decode": {"replicas": 3}}})
    with pytest.raises(KubectlError, match=r"-\s+replicas: 3\s+\+\s+replicas: 2"):
        diff(kubectl, site, style, path)


def test_the_crds_show_no_difference(kubectl: Kubectl) -> None:
    for style in (("--server-side",), CLIENT_SIDE):
        kubectl.run("diff", *style, "-f", str(ROOT / "crds"))


def test_no_child_carries_a_mark_by_which_argo_cd_would_prune_it(site: Site, operator: Operator) -> None:
    """Children are in its tree by their owner, and not among what it compares with Git."""
    tracking = f"models:inference.disagg.io/DisaggregatedInference:{site.namespace}/llama"
    body = resource("llama", decode={"scaling": {"maxReplicas": 3, "metrics": [BY_CPU]}}, prefill={"replicas": 2})
    body["metadata"]["labels"] = {INSTANCE: "models"}
    body["metadata"]["annotations"] = {TRACKING: tracking, "argocd.argoproj.io/sync-wave": "1"}
    uid = site.apply(body)["metadata"]["uid"]
    site.wait_built("llama")
    site.wait_quiet("llama")
    children = site.children("llama")
    kinds = {kind for kind, _ in children}
    assert kinds >= {"deployments", "configmaps", "services", "controllerrevisions", "poddisruptionbudgets"}
    assert kinds >= {"disaggregatedinferencescalers", "horizontalpodautoscalers", "serviceaccounts", "networkpolicies"}
    for child in children.values():
        owners = [(owner["uid"], owner.get("controller")) for owner in child["metadata"]["ownerReferences"]]
        assert owners == [(uid, True)], child["metadata"]["name"]
        text = json.dumps(child)
        assert f'"{INSTANCE}": "models"' not in text, "neither on it nor on its pods"
        assert "argocd.argoproj.io" not in text
    versions = site.versions("llama")
    site.edit("dinf", "llama", {"metadata": {"labels": {INSTANCE: "others"}, "annotations": {TRACKING: None}}})
    site.wait_quiet("llama")
    assert site.versions("llama") == versions, "another way of tracking moves nothing"


def test_deleted_from_the_leaves_on_it_goes_with_all_children(site: Site, operator: Operator) -> None:
    """Argo CD prunes in the foreground: the children first, then their owner."""
    site.apply(resource("llama"))
    site.wait_built("llama")
    site.serve("llama")
    site.wait_condition("llama", "Ready", "True")
    site.delete("dinf", "llama", "Foreground")
    eventually(lambda: site.get("dinf", "llama") is None, "it is gone", 60)
    assert not site.children("llama")
    assert "Traceback" not in operator.log


def test_the_way_in_the_docs_gives_argo_cd_the_check_and_takes_nothing(api_server: ApiServer, kubectl: Kubectl) -> None:
    (command,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "gitops.md").read_text(), re.DOTALL)
    kubectl.run("create", "namespace", "argocd")
    kubectl.run("create", "configmap", "argocd-cm", "-n", "argocd", "--from-literal=url=https://argocd.example.org")
    path = f"{kubectl.binary.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(api_server.kubeconfig)}
    subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, env=environment, check=True)
    data = (kubectl.get("configmap", "argocd-cm", "argocd") or {})["data"]
    key = "resource.customizations.health.inference.disagg.io_DisaggregatedInference"
    assert data == {"url": "https://argocd.example.org", key: SCRIPT.read_text()}
