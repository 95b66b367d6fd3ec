"""Files of results, to which tests with full counts add what they measured, and the commit that was measured."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = _ROOT / "benchmarks" / "results"


def read_results(path: Path) -> dict[str, Any]:
    """What a file holds so far; nothing if it is not there."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Replace a file, in an order that shows what changed."""
    path.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def read_commit() -> str:
    """The commit that is checked out. Raises CalledProcessError outside a git checkout."""
    return read_git("rev-parse", "--short", "HEAD")


def read_git(*arguments: str) -> str:
    """What git says of this checkout. Raises CalledProcessError outside one."""
    command = ["git", "-C", str(_ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
