"""The Python environment with vLLM 0.9.2's own V0 connector, made once from its lock."""

from pathlib import Path

from connector.environment import make_environment

_LOCK = Path(__file__).parents[3] / "requirements" / "v0-fixture.txt"


def original_environment() -> Path:
    """The environment's folder. The first call takes a minute and 2 GB; later ones find it whole."""
    return make_environment("v0-original", _LOCK, {})


def original_python() -> str:
    """The environment's Python."""
    return str(original_environment() / "bin" / "python")
