"""kubectl as a typed object: the one way in which the demo and the end-to-end tests speak to a cluster."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Manifest = dict[str, Any]
_T = TypeVar("_T")


class KubectlError(RuntimeError):
    """A kubectl call failed. The message holds the call and what kubectl said."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl bound to one kubeconfig and, where given, one context."""

    binary: Path
    kubeconfig: Path | None = None
    context: str | None = None

    def command(self, *args: str) -> list[str]:
        """The full command line of a call."""
        line = [str(self.binary)]
        if self.kubeconfig is not None:
            line += ["--kubeconfig", str(self.kubeconfig)]
        if self.context is not None:
            line += ["--context", self.context]
        return [*line, *args]

    def run(self, *args: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run a call and return its standard output. Raises KubectlError."""
        done = subprocess.run(
            self.command(*args), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, kind: str, name: str, namespace: str) -> Manifest | None:
        """One object, or None when it is not there."""
        out = self.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(out) if out.strip() else None

    def items(self, kind: str, namespace: str, selector: str = "") -> list[Manifest]:
        """All objects of a kind in a namespace that match a label selector."""
        out = self.run("get", kind, "-n", namespace, "-l", selector, "-o", "json")
        return list(json.loads(out)["items"])

    def apply(self, *manifests: Manifest) -> None:
        """Apply objects server-side, as the user that the kubeconfig names."""
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self.run("apply", "--server-side", "-f", "-", stdin=body)

    def apply_file(self, path: Path, namespace: str) -> None:
        """Apply a file into a namespace."""
        self.run("apply", "--server-side", "-n", namespace, "-f", str(path))

    def patch(self, kind: str, name: str, namespace: str, patch: Manifest) -> None:
        """Merge a change into an object."""
        self.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(patch))

    @contextmanager
    def port_forward(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """Forward a local port to `target` (such as service/x) while the block runs; yields the URL."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            local = probe.getsockname()[1]
        process = subprocess.Popen(
            self.command("port-forward", "-n", namespace, target, f"{local}:{port}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_until(lambda: _accepts(local), timeout=30, what=f"port-forward to {target}")
            yield f"http://127.0.0.1:{local}"
        finally:
            process.terminate()
            process.communicate(timeout=10)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(question: Callable[[], _T | None], *, timeout: float, what: str, every: float = 1.0) -> _T:
    """Ask until the answer is truthy, at most `timeout` seconds. Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + timeout
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not so after {timeout:.0f} s")
        time.sleep(every)


def condition(resource: Manifest | None, kind: str) -> Manifest:
    """One condition of a resource; empty when the resource or the condition is not there."""
    # A new CRD has null for its conditions.
    conditions = (resource or {}).get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})
