"""What each end-to-end test came to in a run with full counts: outcome, seconds, and the commit that was tested."""

import json
import subprocess
from pathlib import Path

import pytest
from demo.cluster import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "e2e-long.json"


class LongResults:
    """A pytest plugin that keeps one entry for each test, by module. A later run replaces what it ran again."""

    def __init__(self, path: Path = RESULTS) -> None:
        self.path = path
        self.commit = _commit()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test's own part tells how it ended; its fixtures only when they fail or skip it.
        if report.when == "call" or report.outcome != "passed":
            self._keep(report)

    def _keep(self, report: pytest.TestReport) -> None:
        """Write at once: a long run that is cut short keeps what it has seen."""
        file, _, test = report.nodeid.partition("::")
        results = json.loads(self.path.read_text()) if self.path.exists() else {}
        entry = {"commit": self.commit, "outcome": report.outcome, "seconds": round(report.duration)}
        results.setdefault(Path(file).name, {})[test] = entry
        self.path.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def _commit() -> str:
    """The commit that is checked out, marked when more than results differs from it; empty outside a git checkout."""
    changed = _git("status", "--porcelain", "--", ":/", ":!/benchmarks/results")
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()
