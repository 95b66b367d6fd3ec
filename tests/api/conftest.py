"""One real API server for all tests below, the CRD in it, kubectl, and a namespace for each test. No kubelet runs.

Children's controllers do not run either, so that tests may write the children's status; the garbage collector and the
namespace controller do.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from api.rest import Rest
from cluster import apiserver, binaries, paths
from cluster.apiserver import ApiServer
from demo.kubectl import Kubectl, KubectlError, condition, wait_until

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "crds" / "inference.disagg.io_disaggregatedinferences.yaml"
CRD_NAME = "disaggregatedinferences.inference.disagg.io"
SCALER_CRD_FILE = ROOT / "crds" / "inference.disagg.io_disaggregatedinferencescalers.yaml"

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The API server. Ends with the session."""
    binaries.require(["kube-apiserver", "etcd", "kubectl", "kube-controller-manager"])
    controllers = ["garbage-collector-controller", "namespace-controller"]
    with apiserver.start(tmp_path_factory.mktemp("apiserver"), controllers=controllers) as server:
        yield server


@pytest.fixture(scope="session")
def kubectl(api_server: ApiServer) -> Kubectl:
    """kubectl as administrator, the CRDs installed and served."""
    program = Kubectl(paths.binary("kubectl"), api_server.kubeconfig)
    install_crd(program)
    install_scaler_crd(program)
    return program


@pytest.fixture(scope="session")
def rest(api_server: ApiServer, kubectl: Kubectl) -> Rest:
    """Plain requests as administrator, the CRD installed and served."""
    return Rest(api_server)


@pytest.fixture
def namespace(kubectl: Kubectl) -> str:
    """A namespace of the test's own. It goes with the server."""
    return new_namespace(kubectl)


def new_namespace(kubectl: Kubectl) -> str:
    """A fresh namespace, in which Pod Security "restricted" is enforced."""
    name = f"test-{next(_numbers)}"
    kubectl.run("create", "namespace", name)
    kubectl.run("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    return name


def install_crd(kubectl: Kubectl) -> None:
    """Apply the CRD server-side and wait until its resource is served."""
    kubectl.run("apply", "--server-side", "-f", str(CRD_FILE))
    wait_established(kubectl)
    _wait_served(kubectl, "disaggregatedinferences")


def install_scaler_crd(kubectl: Kubectl) -> None:
    """The same for the CRD of scalers."""
    kubectl.run("apply", "--server-side", "-f", str(SCALER_CRD_FILE))
    _wait_served(kubectl, "disaggregatedinferencescalers")


def _wait_served(kubectl: Kubectl, plural: str) -> None:
    """Wait until a resource can be listed: for a moment after its CRD is established, its storage is not there."""

    def is_served() -> bool:
        try:
            kubectl.run("get", plural, "--all-namespaces")
        except KubectlError:
            return False
        return True

    wait_until(
        is_served,
        timeout=30,
        what=f"the CRD of {plural} is established, and its resource is served",
        every=0.1,
    )


def wait_established(kubectl: Kubectl) -> None:
    """Wait until the CRD is established. `kubectl wait` fails on one that is too new to have conditions."""
    wait_until(
        lambda: condition(kubectl.get("crd", CRD_NAME, ""), "Established").get("status") == "True",
        timeout=30,
        what="the CRD is established",
        every=0.1,
    )
