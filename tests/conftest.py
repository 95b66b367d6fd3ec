"""Options that all tests share, and one place for the temporary files of all that they start."""

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Machines here are noisy: no example may fail by its time. A hanging test ends by the time limit of the run.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files; review the diff")
    parser.addoption("--full-counts", action="store_true", help="full counts of the acceptance lists (long)")
    parser.addoption("--keep", action="store_true", help="leave the cluster and what the tests made in it")


TEMPORARY = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a temporary folder. Programs that the tests kill have no chance to remove what they made there.

    pytest's own folders stay where they were: a failed test's files are to be read. A cluster that is to stay needs its
    temporary files longer than that.
    """
    if config.getoption("--keep"):
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # A short path: there are sockets in it.
    config.stash[TEMPORARY] = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="disagg-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it."""
    if TEMPORARY in config.stash:
        tempfile.tempdir = None
        shutil.rmtree(config.stash[TEMPORARY], ignore_errors=True)


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def full_counts(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full-counts"))
