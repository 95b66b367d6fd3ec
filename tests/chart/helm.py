"""Runs the real helm on the project's chart."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "disaggregated-inference-operator"
CASES = Path(__file__).parent / "golden"
CASE_NAMES = sorted(path.name for path in CASES.iterdir())
# The release and namespace of all renders: those that docs/install.md and the demo use.
RELEASE = "disagg"
NAMESPACE = "disagg-system"

Manifest = dict[str, Any]


class HelmError(RuntimeError):
    """Helm failed; the text is what it told the user."""


@dataclass(frozen=True)
class Helm:
    """The helm program, with a home of its own so that a developer's settings play no part."""

    program: Path
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *args: str, stdin: str = "") -> str:
        """Helm's standard output. Raises HelmError."""
        done = subprocess.run(
            [str(self.program), *args],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **self.environment},
        )
        if done.returncode != 0:
            raise HelmError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def template(self, *args: str, values: Mapping[str, Any] | None = None) -> list[Manifest]:
        """All rendered manifests, for the release of docs/install.md."""
        text = self.run(
            "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-", *args,
            stdin=yaml.safe_dump(dict(values or {})),
        )  # fmt: skip
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def case_values(name: str) -> dict[str, Any]:
    """The values of one golden case."""
    loaded: dict[str, Any] = yaml.safe_load((CASES / name / "values.yaml").read_text())
    return loaded


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    """Those of some kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]
