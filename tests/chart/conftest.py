"""The real helm for the chart's tests."""

from pathlib import Path

import pytest
from chart.helm import Helm
from cluster import paths


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    program: Path = paths.binary("helm")
    if not program.exists():
        pytest.fail(f"{program} is not there; build it with: make binaries")
    return Helm(program, tmp_path_factory.mktemp("helm-home"))
