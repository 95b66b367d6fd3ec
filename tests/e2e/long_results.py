"""What each end-to-end test came to in a run with full counts: outcome, seconds, and the commit that was tested."""

import subprocess
from pathlib import Path

import pytest
from results import RESULTS, read_commit, read_git, read_results, write_results


class LongResults:
    """A pytest plugin that keeps one entry for each test, by module. A later run replaces what it ran again."""

    def __init__(self, path: Path = RESULTS / "e2e-long.json") -> None:
        self.path = path
        self.commit = _commit()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test's own part tells how it ended; its fixtures only when they fail or skip it.
        if report.when == "call" or report.outcome != "passed":
            self._keep(report)

    def _keep(self, report: pytest.TestReport) -> None:
        """Write at once: a long run that is cut short keeps what it has seen."""
        file, _, test = report.nodeid.partition("::")
        results = read_results(self.path)
        entry = {"commit": self.commit, "outcome": report.outcome, "seconds": round(report.duration)}
        results.setdefault(Path(file).name, {})[test] = entry
        write_results(self.path, results)


def _commit() -> str:
    """The commit that is checked out, marked when more than results differs from it; empty outside a git checkout."""
    try:
        changed = read_git("status", "--porcelain", "--", ":/", ":!/benchmarks/results")
        return read_commit() + ("-dirty" if changed else "")
    except subprocess.CalledProcessError:
        return ""
