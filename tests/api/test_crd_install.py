"""The CRD can be installed in every way that people do it, and over an older one of itself."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from api.conftest import CRD_FILE, CRD_NAME, install_crd, wait_established
from api.manifests import Json, resource
from api.rest import Rest
from cluster import apiserver, paths
from demo.kubectl import Kubectl, KubectlError, condition

# What client-side apply keeps in an annotation; the API server takes no more.
MAX_LAST_APPLIED = 262_144


@pytest.fixture(scope="module")
def bare_kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl against an API server of these tests' own, since they remove the CRD."""
    with apiserver.start(tmp_path_factory.mktemp("apiserver")) as server:
        yield Kubectl(paths.binary("kubectl"), server.kubeconfig)


def test_the_resource_is_served(kubectl: Kubectl) -> None:
    out = kubectl.run("api-resources", "--api-group=inference.disagg.io", "-o", "wide")
    row = next(line.split() for line in out.splitlines() if line.startswith("disaggregatedinferences"))
    assert row[1:5] == ["dinf", "inference.disagg.io/v1alpha1", "true", "DisaggregatedInference"]
    assert row[-1] == "inference", "its category"


def test_one_can_wait_for_it_from_the_first_moment(bare_kubectl: Kubectl) -> None:
    """At first its conditions are null, which `kubectl wait` takes for an error."""
    bare_kubectl.run("delete", "crd", CRD_NAME, "--ignore-not-found", "--timeout=30s")
    fresh = json.loads(bare_kubectl.run("apply", "--server-side", "-o", "json", "-f", str(CRD_FILE)))
    assert fresh["status"]["conditions"] is None
    assert condition(fresh, "Established") == {}
    wait_established(bare_kubectl)


@pytest.mark.parametrize("style", [["apply"], ["apply", "--server-side"], ["create"]])
def test_it_can_be_applied(style: list[str], bare_kubectl: Kubectl) -> None:
    bare_kubectl.run("delete", "crd", CRD_NAME, "--ignore-not-found", "--timeout=30s")
    bare_kubectl.run(*style, "--validate=strict", "--warnings-as-errors", "-f", str(CRD_FILE))
    wait_established(bare_kubectl)
    crd = _read(bare_kubectl)
    assert "NonStructuralSchema" not in {condition["type"] for condition in crd["status"]["conditions"]}
    if style == ["apply"]:
        kept = crd["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
        assert len(kept) < MAX_LAST_APPLIED


def test_a_folder_can_be_applied(bare_kubectl: Kubectl) -> None:
    """As the documentation has it."""
    bare_kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE.parent))


def test_an_upgrade_leaves_resources_as_they_are(bare_kubectl: Kubectl, tmp_path: Path) -> None:
    """From a CRD that lacks a field and a rule, with a resource in it that the rule would refuse."""
    old = _read_file()
    spec = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["networkPolicy"]
    del spec["kvStore"]["properties"]["localBufferSize"]["x-kubernetes-validations"]
    old_file = tmp_path / "old.json"
    old_file.write_text(json.dumps(old))
    bare_kubectl.run("delete", "crd", CRD_NAME, "--ignore-not-found", "--timeout=30s")
    bare_kubectl.run("apply", "--server-side", "-f", str(old_file))
    wait_established(bare_kubectl)
    bare_kubectl.run("create", "-f", "-", stdin=json.dumps(resource(kvStore={"localBufferSize": "4g"})))
    install_crd(bare_kubectl)
    kept = bare_kubectl.get("dinf", "llama", "default")
    assert kept is not None
    assert kept["spec"]["networkPolicy"] == "Enabled", "a new field's default is filled in on read"
    # The API server forgives an old fault in what is not touched, so such a resource can be edited.
    bare_kubectl.patch("dinf", "llama", "default", {"spec": {"decode": {"replicas": 2}}})
    with pytest.raises(KubectlError, match="not a size"):
        bare_kubectl.patch("dinf", "llama", "default", {"spec": {"kvStore": {"localBufferSize": "5g"}}})
    bare_kubectl.run("delete", "dinf", "llama", "--timeout=30s")


@pytest.mark.parametrize("part", ["engine", "decode"])
def test_rules_on_the_largest_lists_stay_inside_the_run_time_cost(part: str, rest: Rest) -> None:
    args = ["--x" + "y" * 1021] * 128
    env = [{"name": f"N{number:0252}", "value": "v" * 8192} for number in range(128)]
    answer = rest.create(resource(**{part: {"args": args, "env": env}}), "default", dry_run=True)
    assert (answer.code, answer.message) == (201, "")


def _read(kubectl: Kubectl) -> Json:
    crd: Json = json.loads(kubectl.run("get", "crd", CRD_NAME, "-o", "json"))
    return crd


def _read_file() -> Json:
    crd: Json = yaml.safe_load(CRD_FILE.read_text())
    return crd
