"""What the operator's package imports, it also asks for."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

OPERATOR = Path(__file__).parents[2] / "operator"
# An editable install does not tell its packages.
MEMBERS = {"mooncake_store_connector": "mooncake-store-connector"}


def imported() -> set[str]:
    """Top-level packages that the operator imports, its own and Python's left out."""
    names: set[str] = set()
    for file in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"disagg_operator"}


def test_every_import_is_listed() -> None:
    project = tomllib.loads((OPERATOR / "pyproject.toml").read_text())["project"]
    listed = {re.split(r"[^\w-]", line)[0].lower() for line in project["dependencies"]}
    known = packages_distributions()
    needed = {(MEMBERS.get(name) or known[name][0]).lower().replace("_", "-") for name in imported()}
    assert needed >= {"kopf", "mooncake-store-connector"}
    assert needed <= listed
