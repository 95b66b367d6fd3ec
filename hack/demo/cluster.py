"""The cluster that the demo and the end-to-end tests use: the project's own, or one that the user named."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from demo.kubectl import Kubectl

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "disaggregated-inference-operator"
RELEASE = "disagg"
NAMESPACE = "disagg-system"


def tool(module: str, *args: str, capture: bool = False) -> str:
    """Run one of the repository's own tools, such as `cluster up`. Raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "hack")}
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        env=environment,
        cwd=ROOT,
        check=True,
        text=True,
        stdout=subprocess.PIPE if capture else None,
    )
    return done.stdout or ""


@dataclass(frozen=True)
class Cluster:
    """A reachable cluster, with helm and the image references to install from."""

    kubectl: Kubectl
    helm: Path
    images: dict[str, str]
    local: bool
    audit_log: str = ""
    node_address: str = ""
    model_dir: str = ""

    def install_operator(self, *extra: str) -> None:
        """Install or upgrade the operator by its chart and wait until it runs."""
        self.run_helm(
            "upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace",
            *self.image_values(), *extra, "--wait", "--timeout", "3m",
        )  # fmt: skip

    def uninstall_operator(self) -> None:
        """Uninstall the chart. CRs, their children and the CRD stay."""
        self.run_helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")

    def image_values(self) -> list[str]:
        """Helm arguments that name the images."""
        values = {
            "image.ref": self.images["operator"],
            "images.engine.cpu": self.images["engine-cpu"],
            "images.store": self.images["store"],
            "images.router": self.images["router"],
        }
        return [part for key, value in values.items() for part in ("--set-string", f"{key}={value}")]

    def run_helm(self, *args: str) -> str:
        """Run helm against this cluster. Raises CalledProcessError with helm's own text in the output."""
        line = [str(self.helm), *args]
        if self.kubectl.kubeconfig is not None:
            line += ["--kubeconfig", str(self.kubectl.kubeconfig)]
        if self.kubectl.context is not None:
            line += ["--kube-context", self.kubectl.context]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"helm {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout


def open_cluster() -> Cluster:
    """Bring up the project's own cluster and its images, or find them there. What is not built yet is built."""
    tool("cluster", "build")
    tool("cluster", "up")
    tool("imagebuild", "build")
    tool("imagebuild", "push")
    return find_cluster()


def find_cluster() -> Cluster:
    """The project's own cluster, which is up."""
    where = json.loads(tool("cluster", "where", capture=True))
    binaries = Path(where["bin"])
    kubectl = Kubectl(binaries / "kubectl", Path(where["kubeconfig"]))
    return Cluster(
        kubectl,
        binaries / "helm",
        image_refs(),
        local=True,
        audit_log=where["audit_log"],
        node_address=where["node_address"],
        model_dir=where["model_dir"],
    )


def image_refs(*args: str) -> dict[str, str]:
    """References of the images as they were pushed, by image name."""
    return dict(json.loads(tool("imagebuild", "refs", *args, capture=True)))
