"""A cluster in which the chart is installed: helm and kubectl that talk to it."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chart.helm import CHART, Helm
from cluster import paths

CRD = "disaggregatedinferences.inference.disagg.io"
REGISTRY = ("--set", "registry=registry.example.com/team")
RESOURCE = {
    "apiVersion": "inference.disagg.io/v1alpha1",
    "kind": "DisaggregatedInference",
    "metadata": {"name": "llama", "namespace": "default"},
}


@dataclass(frozen=True)
class Site:
    """A cluster with helm and kubectl that talk to it."""

    helm: Helm
    kubeconfig: Path

    def kubectl(self, *args: str, stdin: str = "", ok: bool = True) -> str:
        """Kubectl's standard output; with ok=False its error text, and it has to fail."""
        done = subprocess.run(
            [str(paths.binary("kubectl")), "--kubeconfig", str(self.kubeconfig), *args],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert (done.returncode == 0) == ok, done.stderr
        return done.stdout if ok else done.stderr

    def apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def serve(self, **spec: str) -> None:
        """Apply a resource as soon as the API server has taken up the CRD; a new schema takes it a moment."""
        text = json.dumps(RESOURCE | {"spec": {"model": {"uri": "hf://org/model"}, **spec}})
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                self.kubectl("apply", "-f", "-", stdin=text)
            except AssertionError:
                time.sleep(0.2)
            else:
                return
        self.kubectl("apply", "-f", "-", stdin=text)

    def get(self, *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def names(self, *args: str) -> set[str]:
        """kind/name of what is there."""
        return set(self.kubectl("get", *args, "-o", "name").split())

    def install(self, release: str, namespace: str, *args: str, chart: Path = CHART) -> str:
        return self.helm.run("install", release, str(chart), "-n", namespace, "--create-namespace", *REGISTRY, *args)

    def upgrade(self, release: str, namespace: str, *args: str, chart: Path = CHART) -> str:
        return self.helm.run("upgrade", release, str(chart), "-n", namespace, "--reuse-values", *args)

    def owner(self) -> str | None:
        """The release that owns the CRD, as `namespace/name`."""
        notes = self.get("crd", CRD)["metadata"].get("annotations", {})
        if "meta.helm.sh/release-name" not in notes:
            return None
        return f"{notes['meta.helm.sh/release-namespace']}/{notes['meta.helm.sh/release-name']}"

    def knows_new_field(self) -> bool:
        schema = self.get("crd", CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return "newField" in schema["properties"]["spec"]["properties"]
