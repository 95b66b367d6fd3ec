"""docs/connector-guards.md names tests that are there, and calls of the client that are not used are not used."""

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_SOURCE = _ROOT / "connector" / "src" / "mooncake_store_connector"
_ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (_ROOT / "docs" / "connector-guards.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("| ---", "| The client |"))
]
# Why each misleads stands in the page: sessions, counts of 32 bits, a word that proves nothing, others' objects.
_AVOIDED = {
    "batch_put_session_start",
    "batch_put_session_end",
    "batch_put_from_multi_buffer_ranges",
    "batch_put_from_multi_buffers",
    "batch_get_into_multi_buffers",
    "batch_get_into_multi_buffer_ranges",
    "batch_get_session_start",
    "health_check",
    "remove_all",
    "remove_by_regex",
}


def _functions(path: Path) -> set[str]:
    return {one.name for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0][:50])
def test_each_behaviour_has_a_guard_and_tests_that_exist(row: list[str]) -> None:
    behaviour, guard, tests = row
    assert behaviour
    assert guard
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    for name in named:
        file, _, function = name.partition("::")
        assert function.startswith("test_")
        assert function in _functions(_ROOT / "tests" / file), name


def test_tests_of_guards_are_all_in_the_page() -> None:
    file = "connector/test_client_guards.py"
    there = {name for name in _functions(_ROOT / "tests" / file) if name.startswith("test_")}
    assert there == set(re.findall(rf"`{re.escape(file)}::([^`]+)`", " ".join(row[2] for row in _ROWS)))


def test_calls_that_mislead_are_not_used() -> None:
    """Not as a method, nor by its name in a text, as the agent calls them."""
    used: dict[str, str] = {}
    for path in _SOURCE.rglob("*.py"):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.Attribute):
                used[one.attr] = path.name
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                used[one.value] = path.name
    # The search finds the calls that are used.
    assert {"batch_get_into", "batch_put_from", "batch_is_exist", "register_buffer"} <= used.keys()
    assert {name: used[name] for name in _AVOIDED & used.keys()} == {}
