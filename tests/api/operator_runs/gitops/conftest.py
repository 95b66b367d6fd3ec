"""Programs around the libraries that GitOps tools judge and apply by, built from source."""

from pathlib import Path

import pytest
from api.operator_runs.gitops.tools import ArgoHealth, Flux, KStatus
from api.operator_runs.site import Site
from cluster import gotool
from cluster.locks import exclusive
from unit.gitops.lua import SCRIPT


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built programs. The first build takes minutes, later ones are in Go's cache."""
    out = tmp_path_factory.mktemp("gitops-programs")
    with exclusive("build"):
        gotool.build_programs(Path(__file__).parent / "programs", out)
    return out


@pytest.fixture(scope="session")
def kstatus(programs: Path) -> KStatus:
    return KStatus(programs / "kstatus")


@pytest.fixture(scope="session")
def argo_health(programs: Path) -> ArgoHealth:
    """The health check as Argo CD runs it."""
    return ArgoHealth(programs / "argohealth", SCRIPT)


@pytest.fixture
def flux(programs: Path, site: Site) -> Flux:
    """Flux as it works on the test's namespace."""
    user = f"system:serviceaccount:flux-system:kustomize-controller-{site.namespace}"
    kubeconfig = site.server.kubeconfig_for(user, ["system:masters"])
    return Flux(programs / "fluxapply", kubeconfig, site.namespace, user)
