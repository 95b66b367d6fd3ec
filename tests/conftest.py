"""Options that all tests share."""

import pytest


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
