"""The pause image: a few lines of Go on an empty image, pushed to the local registry."""

import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from cluster import gotool, paths, registry
from cluster.node import PAUSE

_NAME = PAUSE.removeprefix(f"{registry.ADDRESS}/").partition(":")[0]
_TAG = PAUSE.rpartition(":")[2]


def ensure() -> None:
    """Build and push the image unless the registry has it."""
    if _is_pushed():
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
        command = [str(gotool.find_go()), "build", "-buildvcs=false", "-ldflags=-s -w", "-o", f"{folder}/pause", "."]
        subprocess.run(command, cwd=paths.TOOLS / "pause", env=environment, check=True)
        Path(folder, "Dockerfile").write_text(
            'FROM scratch\nCOPY pause /pause\nUSER 65532:65532\nENTRYPOINT ["/pause"]\n'
        )
        local = f"localhost/disagg/pause:{_TAG}"
        subprocess.run(
            ["buildah", "bud", "--isolation", "chroot", "-q", "-t", local, folder], check=True, capture_output=True
        )
        push = ["buildah", "push", "-q", "--tls-verify=false", local, f"docker://{PAUSE}"]
        subprocess.run(push, check=True, capture_output=True)


def _is_pushed() -> bool:
    request = urllib.request.Request(f"http://{registry.ADDRESS}/v2/{_NAME}/manifests/{_TAG}", method="HEAD")
    request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
    try:
        with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - loopback only
            return True
    except (urllib.error.URLError, OSError):
        return False
