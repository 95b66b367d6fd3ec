"""A namespace with an operator's rights in it, and an operator that works there."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from api.conftest import install_crd, install_scaler_crd
from api.operator_runs.site import Operator, Site
from api.rest import Rest
from cluster import apiserver, binaries, paths
from cluster.apiserver import ApiServer
from demo.kubectl import Kubectl

_numbers = itertools.count(1)


@pytest.fixture
def site(api_server: ApiServer, rest: Rest, namespace: str, tmp_path: Path) -> Site:
    """A namespace of the test's own. The operator's identity may do in it what its table of rights says."""
    site = Site(api_server, rest, namespace, tmp_path)
    site.grant()
    return site


@pytest.fixture
def operator(site: Site) -> Iterator[Operator]:
    """An operator that watches the test's namespace."""
    with site.operator() as operator:
        yield operator


@pytest.fixture(scope="session")
def spare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server for tests that break what others need, with the controllers that make pods of Deployments."""
    binaries.require(["kube-apiserver", "etcd", "kubectl", "kube-controller-manager"])
    controllers = [*apiserver.CONTROLLERS, "resourcequota-controller"]
    with apiserver.start(tmp_path_factory.mktemp("spare"), controllers=controllers) as server:
        yield server


@pytest.fixture
def spare_kubectl(spare_server: ApiServer) -> Kubectl:
    """kubectl as that server's administrator, the CRDs installed and served whatever the test before did to them."""
    program = Kubectl(paths.binary("kubectl"), spare_server.kubeconfig)
    install_crd(program)
    install_scaler_crd(program)
    return program


@pytest.fixture
def spare(spare_server: ApiServer, spare_kubectl: Kubectl, tmp_path: Path) -> Site:
    """A namespace of that server."""
    site = Site(spare_server, Rest(spare_server), f"spare-{next(_numbers)}", tmp_path)
    spare_kubectl.run("create", "namespace", site.namespace)
    site.grant()
    return site
