"""Which Go builds the binaries: the machine's own when it is new enough, else the one that setup brought."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from cluster import paths
from cluster.errors import ClusterError

MINIMUM = (1, 26, 6)


def parse_version(text: str) -> tuple[int, ...] | None:
    """The version in `go version` output, as numbers; None when there is none."""
    found = re.search(r"\bgo(\d+(?:\.\d+)+)", text)
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def is_new_enough(version_output: str) -> bool:
    """Whether this Go can build every module of ours."""
    version = parse_version(version_output)
    return version is not None and version >= MINIMUM


def version_output(go: Path) -> str:
    """What `go version` prints; empty when it cannot run."""
    try:
        done = subprocess.run([str(go), "version"], capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return ""
    return done.stdout.strip()


def find_go() -> Path:
    """A Go that is new enough. Raises ClusterError."""
    on_path = shutil.which("go")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted((paths.cache() / "go").glob("lib/python3*/site-packages/go/bin/go"))
    for go in candidates:
        if is_new_enough(version_output(go)):
            return go
    found = ", ".join(f"{go}: {version_output(go) or 'does not run'}" for go in candidates) or "none"
    wanted = ".".join(map(str, MINIMUM))
    raise ClusterError(f"no Go {wanted} or newer (found: {found}); `hack/setup.sh` installs one")


def build_programs(source: Path, out: Path) -> None:
    """Build the programs of a small module of our own into a folder, static. Raises ClusterError."""
    # A developer's flags must not decide what is built. The toolchain is the one that was found.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    command = [str(find_go()), "build", "-buildvcs=false", "-ldflags=-s -w", "-o", f"{out}/", "./..."]
    done = subprocess.run(command, cwd=source, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"building {source.name} failed:\n{done.stderr.strip()}")
