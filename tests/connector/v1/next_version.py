"""The sources of the next vLLM, read by tests and never run: its wheel needs a GPU's libraries."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from connector.environment import cache

_LOCK = Path(__file__).parents[3] / "requirements" / "v1-next.txt"


def next_sources() -> Path:
    """The folder in which its package lies. The first call fetches the wheel, 340 MB; 30 MB of it are kept."""
    folder = cache() / "sources" / "v1-next"
    wanted = hashlib.sha256(_LOCK.read_bytes()).hexdigest()
    stamp = folder / "lock.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as whole:
        flags = ["--no-cache", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        command = [uv, "pip", "install", "-q", *flags, "--python", sys.executable, "--target", whole, "-r", str(_LOCK)]
        subprocess.run(command, check=True)
        for file in Path(whole, "vllm").rglob("*.py"):
            target = folder / file.relative_to(whole)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    stamp.write_text(wanted)
    return folder
