"""The parts of the V0 connector that need torch, checked in the engine's environment: see checks.py."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from connector.environment import connector_path, program

_PROGRAM = Path(__file__).with_name("checks.py")
_CHECKS = [
    node.name
    for node in ast.parse(_PROGRAM.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What each check raised: an empty text for nothing."""
    env = {**os.environ, "PYTHONPATH": connector_path(), "CUDA_MODULE_LOADING": "LAZY"}
    ran = subprocess.run(
        ["nice", program("python"), str(_PROGRAM)], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])["checks"]
    return found


@pytest.mark.parametrize("name", _CHECKS)
def test_check(told: dict[str, str], name: str) -> None:
    assert told[name] == ""
