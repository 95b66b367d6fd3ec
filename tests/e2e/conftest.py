"""One real cluster for the whole run: the project's own, with the operator installed by its chart."""

from collections.abc import Iterator

import pytest
from demo.cluster import Cluster, open_cluster
from demo.kubectl import Kubectl
from e2e.long_results import LongResults


def pytest_configure(config: pytest.Config) -> None:
    """Keep the results of a run with full counts."""
    if config.getoption("--full-counts"):
        config.pluginmanager.register(LongResults())


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The local cluster with the operator in it."""
    opened = open_cluster()
    opened.install_operator()
    yield opened
    if not request.config.getoption("--keep"):
        opened.uninstall_operator()


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Kubectl:
    return cluster.kubectl
