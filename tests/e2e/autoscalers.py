"""metrics-server, KEDA and Prometheus in the cluster.

The programs are their makers', and so are the manifests of the first two. What addons/ changes in them is for one small
node.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from cluster import autoscaling
from demo.kubectl import Kubectl, Manifest

_CHANGES = Path(__file__).parent / "addons"


@dataclass(frozen=True)
class Addon:
    """One of them: the folder in addons/, the program of each container, and the Go module that has the manifests."""

    name: str
    programs: Mapping[str, str]
    module: str = ""


METRICS_SERVER = Addon("metrics-server", {"metrics-server": "metrics-server"}, "sigs.k8s.io/metrics-server")
KEDA = Addon(
    "keda",
    {
        "keda-operator": "keda",
        "keda-metrics-apiserver": "keda-adapter",
        "keda-admission-webhooks": "keda-admission-webhooks",
    },
    "github.com/kedacore/keda/v2",
)
PROMETHEUS = Addon("prometheus", {"prometheus": "prometheus"})


@contextmanager
def installed(kubectl: Kubectl, addon: Addon, scratch: Path) -> Iterator[None]:
    """Install it and wait until it serves; remove it when the block ends."""
    images = autoscaling.ensure_images(addon.programs.values())
    manifests = in_order(render(kubectl, addon, images, scratch))
    kubectl.apply(*manifests)
    try:
        for manifest in manifests:
            if manifest["kind"] in ("Deployment", "APIService"):
                wait_available(kubectl, manifest)
        yield
    finally:
        for manifest in reversed(manifests):
            kubectl.run("delete", *address(manifest), "--ignore-not-found", timeout=300)


def render(kubectl: Kubectl, addon: Addon, images: Mapping[str, str], scratch: Path) -> list[Manifest]:
    """Everything to apply, with the images that were built here."""
    shutil.copytree(_CHANGES / addon.name, scratch / addon.name)
    if addon.module:
        (scratch / "upstream").symlink_to(autoscaling.source_of(addon.module))
    manifests: list[Manifest] = list(yaml.safe_load_all(kubectl.run("kustomize", str(scratch / addon.name))))
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["image"] = images[addon.programs[container["name"]]]
    return manifests


def in_order(manifests: list[Manifest]) -> list[Manifest]:
    """Namespaces before what is in them; APIServices last, so that the reverse order ends them first."""
    ranks = {"Namespace": 0, "APIService": 2}
    return sorted(manifests, key=lambda manifest: ranks.get(manifest["kind"], 1))


def wait_available(kubectl: Kubectl, manifest: Manifest) -> None:
    """Wait for a Deployment's pods, or until the API server reaches an APIService."""
    kubectl.run("wait", *address(manifest), "--for=condition=Available", "--timeout=300s", timeout=330)


def address(manifest: Manifest) -> list[str]:
    """Arguments by which kubectl finds an object."""
    metadata = manifest["metadata"]
    place = ["-n", metadata["namespace"]] if "namespace" in metadata else []
    return [manifest["kind"].lower(), metadata["name"], *place]
