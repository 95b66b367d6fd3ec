"""Where the demo runs: the project's own cluster, an existing one by context, or kind. Each yields a Cluster."""

import os
import shutil
import subprocess
from pathlib import Path

from cluster import paths

from demo.cluster import Cluster, find_cluster, image_refs, open_cluster, tool
from demo.kubectl import Kubectl

KIND_NAME = "disagg-demo"


class TargetError(RuntimeError):
    """The place to run in cannot be used. The message says what is missing and what to do."""


def wished_target() -> str:
    """`local` unless DEMO_CONTEXT or DEMO_KIND name another place."""
    if context := os.environ.get("DEMO_CONTEXT"):
        return context
    return "kind" if os.environ.get("DEMO_KIND") else "local"


def is_local_up() -> bool:
    """Whether the project's own cluster runs already."""
    try:
        tool("cluster", "status", capture=True)
    except subprocess.CalledProcessError:
        return False
    return True


def open_target(target: str) -> Cluster:
    """Bring the target up, or find it there. Raises TargetError."""
    if target == "local":
        return open_cluster()
    if target == "kind":
        return _open_kind()
    return _open_context(target)


def find_target(target: str) -> Cluster:
    """The target as it is, for taking the demo down."""
    if target == "local":
        return find_cluster()
    context = f"kind-{KIND_NAME}" if target == "kind" else target
    return Cluster(_foreign_kubectl(context), _binary("helm"), {}, local=False)


def close_target(target: str) -> None:
    """Remove a cluster that the demo made."""
    if target == "local":
        tool("cluster", "down")
    elif target == "kind":
        subprocess.run(["kind", "delete", "cluster", "--name", KIND_NAME], check=True)


def _open_context(context: str) -> Cluster:
    """An existing cluster. Its nodes pull from DEMO_REGISTRY, which this machine can push to."""
    registry = os.environ.get("DEMO_REGISTRY")
    if not registry:
        raise TargetError(
            f"DEMO_CONTEXT={context} needs DEMO_REGISTRY too: a registry and path that this machine can push to and "
            "the cluster can pull from, such as DEMO_REGISTRY=registry.example/team"
        )
    tool("imagebuild", "build")
    tool("imagebuild", "push", "--registry", registry)
    return Cluster(_foreign_kubectl(context), _binary("helm"), image_refs("--registry", registry), local=False)


def _open_kind() -> Cluster:
    """A kind cluster. Not tried where this was written: Docker does not run there."""
    for needed in ("docker", "kind"):
        if shutil.which(needed) is None:
            raise TargetError(
                f"DEMO_KIND needs `{needed}` on PATH; without Docker use the project's own cluster: make demo"
            )
    known = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=True).stdout.split()
    if KIND_NAME not in known:
        subprocess.run(["kind", "create", "cluster", "--name", KIND_NAME, "--wait", "120s"], check=True)
    tool("cluster", "build")
    tool("cluster", "registry-up")
    tool("imagebuild", "build")
    tool("imagebuild", "push")
    refs = image_refs()
    for ref in refs.values():
        subprocess.run(["docker", "pull", ref], check=True)
        subprocess.run(["kind", "load", "docker-image", ref, "--name", KIND_NAME], check=True)
    return Cluster(_foreign_kubectl(f"kind-{KIND_NAME}"), _binary("helm"), refs, local=False)


def _foreign_kubectl(context: str) -> Kubectl:
    return Kubectl(_binary("kubectl"), None, context)


def _binary(name: str) -> Path:
    """A binary on PATH, else the one that the project built."""
    found = shutil.which(name)
    if found:
        return Path(found)
    built = paths.binary(name)
    if built.exists():
        return built
    raise TargetError(f"`{name}` is neither on PATH nor built; run `make binaries`")
