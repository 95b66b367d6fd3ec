"""Every file in examples/ is accepted as it is."""

from pathlib import Path

import pytest
import yaml
from api.conftest import ROOT
from demo.kubectl import Kubectl

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_example_is_accepted_in_strict_mode(path: Path, kubectl: Kubectl, namespace: str) -> None:
    for style in (["--server-side"], ["--server-side=false"]):
        out = kubectl.run("apply", "-n", namespace, "--validate=strict", "--dry-run=server", *style, "-f", str(path))
        assert "disaggregatedinference.inference.disagg.io/" in out


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_example_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# "), "it begins with a comment"
    assert len(text.splitlines()) <= 60
    assert [body["kind"] for body in yaml.safe_load_all(text)] == ["DisaggregatedInference"]
