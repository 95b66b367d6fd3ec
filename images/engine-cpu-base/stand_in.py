"""Puts stand-ins where torch links to CUDA's libraries, so that the image need not carry them (3 GB).

torch's build for PyPI links to these libraries even where no GPU is. Without a GPU nothing in them is ever called,
but the loader wants each file and each function. One small library has every name; a call ends the process at once,
rather than computing something wrong. Run at build time: `stand_in.py SITE_PACKAGES`. It needs gcc and nm.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# The libraries that requirements/engine-cpu.overrides leaves out, by the names that torch links to.
LIBRARIES = re.compile(
    r"lib(cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvshmem_host)\.so\.\d+"
)
# Every function of theirs begins like this, and no other library's does.
FUNCTIONS = re.compile(r"(cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvshmem)\w*")


def main() -> None:
    """Write the stand-in library beside torch's own, under every name that torch links to."""
    site_packages = Path(sys.argv[1])
    users = [file for name in ("torch", "torchaudio", "torchvision") for file in site_packages.glob(f"{name}/**/*.so")]
    functions = {name for user in users for name in find_undefined(user) if FUNCTIONS.fullmatch(name)}
    libraries = {name for user in users for name in find_needed(user) if LIBRARIES.fullmatch(name)}
    if not functions or not libraries:
        sys.exit(f"stand_in.py: nothing below {site_packages} links to CUDA's libraries: no stand-in is needed")
    folder = site_packages / "torch" / "lib"
    compile_library(sorted(functions), folder / "libcuda_stand_in.so")
    for name in sorted(libraries):
        (folder / name).symlink_to("libcuda_stand_in.so")
    print(f"stand-ins for {len(functions)} functions in {len(libraries)} libraries: {', '.join(sorted(libraries))}")


def find_undefined(file: Path) -> list[str]:
    """Names that a library expects others to define, without their versions."""
    lines = _output("nm", "--dynamic", "--undefined-only", str(file)).splitlines()
    return [line.split()[-1].partition("@")[0] for line in lines]


def find_needed(file: Path) -> list[str]:
    """The libraries that a library wants loaded with it."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _output("readelf", "--dynamic", "--wide", str(file)))


def compile_library(functions: list[str], target: Path) -> None:
    """Compile functions that end the process and say which of them was called."""
    head = "#include <stdio.h>\n#include <stdlib.h>\n"
    body = 'void %s(void) { fputs("%s: CUDA is not in this image, it is for CPUs\\n", stderr); abort(); }\n'
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "stand_in.c"
        source.write_text(head + "".join(body % (name, name) for name in functions))
        _output("gcc", "-shared", "-fPIC", "-O1", "-o", str(target), str(source))


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603  # nm, readelf, gcc


if __name__ == "__main__":
    main()
