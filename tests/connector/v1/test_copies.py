"""The copies for devices, as far as a machine without one can tell: on tensors in host memory."""

import subprocess
import sys
from pathlib import Path

from connector.environment import connector_path, program

_BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_copies_for_devices_are_bit_equal() -> None:
    command = [program("python"), str(_BENCHMARKS / "gpu_copies.py"), "cpu"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={"PYTHONPATH": connector_path()}
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "25 of 25 layouts and dtypes are bit-equal on cpu\n"


def test_without_a_gpu_the_check_says_so() -> None:
    """And with one, that it ran."""
    command = [sys.executable, str(_BENCHMARKS / "gpu_check.py")]
    path = str(Path(__file__).parents[2])
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": path})
    has_gpu = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
    assert has_gpu or ran.stdout == "gpu-check: not run: this machine has no GPU\n"
