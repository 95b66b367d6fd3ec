"""Options that all tests share."""

import pytest
from hypothesis import HealthCheck, settings

# Machines here are noisy: no example may fail by its time. A hanging test ends by the time limit of the run.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files; review the diff")
    parser.addoption("--full-counts", action="store_true", help="full counts of the acceptance lists (long)")
    parser.addoption("--keep", action="store_true", help="leave the cluster and what the tests made in it")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def full_counts(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full-counts"))
