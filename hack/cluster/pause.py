"""Images of one static Go program on nothing, pushed to the local registry; the pause image is one."""

import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from cluster import gotool, paths, registry
from cluster.errors import ClusterError
from cluster.node import PAUSE


def ensure() -> None:
    """Build and push the pause image unless the registry has it. Raises ClusterError."""
    if not is_pushed(PAUSE):
        push_static(paths.TOOLS / "pause", PAUSE)


def push_static(source: Path, reference: str) -> None:
    """Build the Go program in `source`, put it alone into an image and push that. Raises ClusterError."""
    with tempfile.TemporaryDirectory() as folder:
        gotool.build_programs(source, Path(folder))
        push_program(Path(folder, source.name), reference)


def push_program(program: Path, reference: str) -> None:
    """Put a static program alone into an image, at the root, and push that. Raises ClusterError."""
    name = program.name
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(program, folder)
        lines = ["FROM scratch", f"COPY {name} /{name}", "USER 65532:65532", f'ENTRYPOINT ["/{name}"]']
        Path(folder, "Dockerfile").write_text("\n".join(lines) + "\n")
        local = f"localhost/{reference.partition('/')[2]}"
        _run(["buildah", "bud", "--isolation", "chroot", "-q", "-t", local, folder])
        _run(["buildah", "push", "-q", "--tls-verify=false", local, f"docker://{reference}"])
        # The registry holds it now; buildah's own copy would outlive `down`.
        _run(["buildah", "rmi", local])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command[:2])} failed:\n{done.stderr.strip()}")


def is_pushed(reference: str) -> bool:
    """Whether the local registry has `127.0.0.1:5000/<name>:<tag>`."""
    name, _, tag = reference.removeprefix(f"{registry.ADDRESS}/").rpartition(":")
    request = urllib.request.Request(f"http://{registry.ADDRESS}/v2/{name}/manifests/{tag}", method="HEAD")
    request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
    try:
        with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - loopback only
            return True
    except (urllib.error.URLError, OSError):
        return False
