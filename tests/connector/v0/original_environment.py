"""The Python environment with vLLM 0.9.2's own V0 connector, made once from its lock."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from connector.environment import cache

_ROOT = Path(__file__).parents[3]
_LOCK = _ROOT / "requirements" / "v0-fixture.txt"
# Makes stand-ins for the CUDA libraries that torch links and that a CPU never calls.
_STAND_IN = _ROOT / "images" / "engine-cpu-base" / "stand_in.py"


def original_environment() -> Path:
    """The environment's folder. The first call takes a minute and 2 GB; later ones find it whole."""
    folder = cache() / "venvs" / "v0-original"
    wanted = hashlib.sha256(_LOCK.read_bytes() + _STAND_IN.read_bytes()).hexdigest()
    stamp = folder / "lock.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "--clear", "--python", "3.11", folder], check=True)
    # --no-deps: the lock has what the connector's classes import, and not all that the wheel asks for.
    flags = ["--no-deps", "--require-hashes", "--python", str(folder / "bin" / "python")]
    subprocess.run([uv, "pip", "install", "-q", *flags, "-r", str(_LOCK)], check=True)
    subprocess.run([sys.executable, _STAND_IN, folder / "lib" / "python3.11" / "site-packages"], check=True)
    stamp.write_text(wanted)
    return folder


def original_python() -> str:
    """The environment's Python."""
    return str(original_environment() / "bin" / "python")
