"""metrics-server, KEDA and Prometheus for tests that scale by them. They are no part of the cluster."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cluster import binaries, gotool, paths, pause, registry
from cluster.errors import ClusterError

MODULE = "autoscaling"


def ensure_images(programs: Iterable[str]) -> dict[str, str]:
    """Build programs and push each in an image, where that is not done yet. References by name of the program."""
    names = list(programs)
    binaries.build(names)
    references = {name: f"{registry.ADDRESS}/disagg-tests/{name}:{binaries.stamp_of(name)[:16]}" for name in names}
    for name, reference in references.items():
        if not pause.is_pushed(reference):
            pause.push_program(paths.binary(name), reference)
    return references


def source_of(module: str) -> Path:
    """Where Go keeps the source of a module, in the version that is pinned here. Raises ClusterError."""
    done = subprocess.run(
        [str(gotool.find_go()), "list", "-m", "-f", "{{.Dir}}", module],
        cwd=paths.TOOLS / MODULE,
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not done.stdout.strip():
        raise ClusterError(f"the source of {module} is not there: {done.stderr.strip() or 'build it first'}")
    return Path(done.stdout.strip())
