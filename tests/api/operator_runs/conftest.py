"""A namespace with an operator's rights in it, and an operator that works there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api.operator_runs.site import Operator, Site
from api.rest import Rest
from cluster.apiserver import ApiServer


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
