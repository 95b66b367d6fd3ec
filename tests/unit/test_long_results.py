"""What a run with full counts leaves behind."""

import json
from pathlib import Path
from typing import Literal

import pytest
from e2e.long_results import LongResults

When = Literal["setup", "call", "teardown"]
Outcome = Literal["passed", "failed", "skipped"]


def report(test: str, when: When, outcome: Outcome, seconds: float = 0) -> pytest.TestReport:
    node = f"tests/e2e/test_some.py::{test}"
    return pytest.TestReport(node, ("", None, ""), {}, outcome, None, when, duration=seconds)


def kept(path: Path) -> dict[str, tuple[str, int]]:
    (tests,) = json.loads(path.read_text()).values()
    return {name: (entry["outcome"], entry["seconds"]) for name, entry in tests.items()}


def test_a_test_counts_by_its_own_part_and_by_fixtures_that_fail_it(tmp_path: Path) -> None:
    results = LongResults(tmp_path / "long.json")
    seen: dict[str, list[tuple[When, Outcome]]] = {
        "test_good[a/b]": [("setup", "passed"), ("call", "passed"), ("teardown", "passed")],
        "test_bad": [("setup", "passed"), ("call", "failed"), ("teardown", "passed")],
        "test_skipped": [("setup", "skipped"), ("teardown", "passed")],
        "test_untidy": [("setup", "passed"), ("call", "passed"), ("teardown", "failed")],
    }
    for test, parts in seen.items():
        for when, outcome in parts:
            results.pytest_runtest_logreport(report(test, when, outcome, 3.4 if when == "call" else 0))
    assert kept(results.path) == {
        "test_good[a/b]": ("passed", 3),
        "test_bad": ("failed", 3),
        "test_skipped": ("skipped", 0),
        "test_untidy": ("failed", 0),
    }


def test_a_later_run_replaces_what_it_ran_again_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    first, second = LongResults(path), LongResults(path)
    first.pytest_runtest_logreport(report("test_one", "call", "failed"))
    first.pytest_runtest_logreport(report("test_two", "call", "passed"))
    second.pytest_runtest_logreport(report("test_one", "call", "passed", 1))
    assert kept(path) == {"test_one": ("passed", 1), "test_two": ("passed", 0)}
