"""Runs `gpu_copies.py` where there is a GPU; elsewhere it says in one line that it was not run: `make gpu-check`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from connector.environment import connector_path, program

# The driver's files of NVIDIA's GPUs and of AMD's.
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd")


def main() -> int:
    """The status of the check; 0 where it is not run."""
    if not any(Path(driver).exists() for driver in _DRIVERS):
        print("gpu-check: not run: this machine has no GPU")
        return 0
    # Any Python with torch will do; that of the tests' engines has one.
    python = os.environ.get("GPU_PYTHON") or program("python")
    command = [python, str(Path(__file__).with_name("gpu_copies.py")), "cuda"]
    return subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": connector_path()}).returncode


if __name__ == "__main__":
    sys.exit(main())
