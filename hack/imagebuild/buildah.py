"""The few buildah calls that builds need. Images live in buildah's own storage under localhost/disagg/."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

LOCAL = "localhost/disagg"
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


class BuildError(RuntimeError):
    """A build step failed. The message has the step and the end of its output."""


def run(*command: str, what: str = "", cwd: Path | None = None) -> str:
    """Run a command, telling every 30 s that it still runs. Raises BuildError with the end of its output."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, env=_environment()
    )
    done = threading.Event()
    if what:
        threading.Thread(target=_tell, args=(what, done), daemon=True).start()
    try:
        output, _ = process.communicate()
    finally:
        done.set()
    if process.returncode != 0:
        raise BuildError(f"{' '.join(command[:4])} ... ended with {process.returncode}:\n{output[-3000:]}")
    return output


def _tell(what: str, done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(30):
        print(f"  {what}: still at it after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "BUILDAH_ISOLATION": "chroot"}


def has_image(name: str, tag: str) -> bool:
    """Whether an image is in buildah's storage."""
    command = ["buildah", "inspect", "--type", "image", f"{LOCAL}/{name}:{tag}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(dockerfile: Path, context: Path, name: str, tag: str, arguments: dict[str, str]) -> None:
    """Build one image and tag it. The host's CA bundle and uv's cache are there during the build alone."""
    command = ["buildah", "bud", "--isolation", "chroot", "--network", "host", "--layers"]
    if _BUNDLE.exists():
        command += ["--volume", f"{_BUNDLE}:{_BUNDLE}:ro"]
    cache = Path(os.environ.get("UV_CACHE_DIR", Path.home() / ".cache" / "uv"))
    cache.mkdir(parents=True, exist_ok=True)
    command += ["--volume", f"{cache}:/root/.cache/uv"]
    for key, value in arguments.items():
        command += ["--build-arg", f"{key}={value}"]
    command += ["--file", str(dockerfile), "--tag", f"{LOCAL}/{name}:{tag}", str(context)]
    run(*command, what=f"building {name}")


def push(name: str, tag: str, target: str) -> None:
    """Push an image to `target` (host/path/name:tag). Plain HTTP only to this machine's own registry."""
    verify = "false" if target.startswith("127.0.0.1:") else "true"
    source = f"{LOCAL}/{name}:{tag}"
    run("buildah", "push", f"--tls-verify={verify}", source, f"docker://{target}", what=f"pushing {name}")


def images() -> list[tuple[str, str]]:
    """Names and tags of our images in buildah's storage."""
    found = []
    for image in json.loads(run("buildah", "images", "--json") or "[]") or []:
        for full in image.get("names") or []:
            if full.startswith(f"{LOCAL}/"):
                name, _, tag = full.removeprefix(f"{LOCAL}/").rpartition(":")
                found.append((name, tag))
    return found


def remove(name: str, tag: str) -> None:
    """Remove a tag, and the layers that nothing else needs."""
    run("buildah", "rmi", "--force", f"{LOCAL}/{name}:{tag}")


def remove_loose_layers() -> None:
    """Remove the layers that no named image stands on, such as those of a build that failed."""
    run("buildah", "rmi", "--prune")
