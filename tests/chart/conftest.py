"""The real helm, and a real API server of the chart's own: its tests install and remove the CRD."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart.helm import Helm
from chart.site import Site
from cluster import paths
from router.apiserver import api_server


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    program = paths.binary("helm")
    if not program.exists():
        pytest.fail(f"{program} is not there; build it with: make binaries")
    return Helm(program, tmp_path_factory.mktemp("helm-home"))


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The administrator's kubeconfig of an API server that ends with the module."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as api:
        file = api.directory / "admin.kubeconfig"
        cluster = {"server": api.url, "insecure-skip-tls-verify": True}
        facts = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "t", "cluster": cluster}],
            "users": [{"name": "t", "user": {"token": "test-admin"}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
            "current-context": "t",
        }
        file.write_text(json.dumps(facts))
        yield file


@pytest.fixture
def site(helm: Helm, kubeconfig: Path) -> Iterator[Site]:
    """The module's API server, emptied of releases and of the CRDs afterwards."""
    here = Site(Helm(helm.program, helm.home, {"KUBECONFIG": str(kubeconfig)}), kubeconfig)
    yield here
    for release in json.loads(here.helm.run("list", "--all-namespaces", "--output", "json")):
        here.helm.run("uninstall", release["name"], "-n", release["namespace"])
    left = [name for name in here.names("crd") if name.endswith(".inference.disagg.io")]
    if left:
        here.kubectl("delete", *left)
