"""metrics-server, KEDA and Prometheus in the cluster.

The programs are their makers', and so are the manifests of the first two. What addons/ changes in them is for one small
node.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from cluster import autoscaling
from demo.kubectl import Kubectl, Manifest

_CHANGES = Path(__file__).parent / "addons"
# Where the manifests are, by the name under which addons/ finds them. Prometheus' module has none.
_SOURCES = {"keda": "github.com/kedacore/keda/v2", "metrics-server": "sigs.k8s.io/metrics-server"}
_PROGRAMS = {"keda-operator": "keda", "keda-metrics-apiserver": "keda-adapter"}
"""Programs of containers that have another name than these."""
_READY_TIMEOUT = "300s"


@contextmanager
def installed(kubectl: Kubectl, scratch: Path) -> Iterator[None]:
    """Install all three while the block runs, without waiting for them."""
    images = autoscaling.ensure_images()
    manifests = in_order(render_all(kubectl, images, scratch))
    kubectl.apply(*manifests)
    try:
        yield
    finally:
        # KEDA itself has to let them go.
        kubectl.run("delete", "scaledobjects", "--all", "--all-namespaces", timeout=300)
        for manifest in reversed(manifests):
            delete(kubectl, manifest)


def wait_installed(kubectl: Kubectl) -> None:
    """Wait until all three run and the API server passes requests on to those that serve metrics."""
    for namespace, names in {
        "kube-system": ["metrics-server"],
        "keda": [*_PROGRAMS, "keda-admission"],
        "monitoring": ["prometheus"],
    }.items():
        deployments = [f"deployment/{name}" for name in names]
        kubectl.run(
            "wait",
            "-n",
            namespace,
            "--for=condition=Available",
            *deployments,
            f"--timeout={_READY_TIMEOUT}",
            timeout=600,
        )
    services = ["apiservice/v1beta1.metrics.k8s.io", "apiservice/v1beta1.external.metrics.k8s.io"]
    kubectl.run("wait", "--for=condition=Available", *services, f"--timeout={_READY_TIMEOUT}", timeout=600)


def render_all(kubectl: Kubectl, images: dict[str, str], scratch: Path) -> list[Manifest]:
    """Everything to apply, with the images that were built here."""
    shutil.copytree(_CHANGES, scratch, dirs_exist_ok=True)
    (scratch / "upstream").mkdir()
    for name, module in _SOURCES.items():
        (scratch / "upstream" / name).symlink_to(autoscaling.source_of(module))
    texts = [kubectl.run("kustomize", str(scratch / folder.name)) for folder in sorted(_CHANGES.iterdir())]
    manifests = [manifest for text in texts for manifest in yaml.safe_load_all(text)]
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["image"] = images[_PROGRAMS.get(container["name"], container["name"])]
    return manifests


def in_order(manifests: list[Manifest]) -> list[Manifest]:
    """Namespaces before what is in them; APIServices last, so that the reverse order ends them first."""
    ranks = {"Namespace": 0, "APIService": 2}
    return sorted(manifests, key=lambda manifest: ranks.get(manifest["kind"], 1))


def delete(kubectl: Kubectl, manifest: Manifest) -> None:
    """Delete one object, if it is there still."""
    metadata = manifest["metadata"]
    place = ["-n", metadata["namespace"]] if "namespace" in metadata else []
    kubectl.run("delete", manifest["kind"].lower(), metadata["name"], *place, "--ignore-not-found", timeout=300)
