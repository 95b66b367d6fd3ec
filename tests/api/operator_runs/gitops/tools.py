"""kstatus, Flux, and Argo CD's Lua, as programs that a test calls."""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.operator_runs.site import Site

Json = dict[str, Any]


class FluxError(Exception):
    """What Flux says that went wrong."""


def _ask(command: list[str], bodies: Iterable[Json]) -> list[Json]:
    """Hand objects to a program that answers each with a line of JSON."""
    text = "\n".join(map(json.dumps, bodies))
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=30)
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class KStatus:
    """kstatus, the library and Flux's copy of it."""

    program: Path

    def judge(self, *bodies: Json) -> list[Json]:
        """A verdict for each object: `status`, `message`, and `flux`, which is the copy's status."""
        return _ask([str(self.program)], bodies)


@dataclass(frozen=True)
class ArgoHealth:
    """A health check in Argo CD's own Lua."""

    program: Path
    script: Path

    def check(self, *bodies: Json) -> list[Json]:
        """`status` and `message` for each object."""
        return _ask([str(self.program), str(self.script)], bodies)


@dataclass(frozen=True)
class Flux:
    """What Flux does with the manifests of one Kustomization in one namespace."""

    program: Path
    kubeconfig: Path
    namespace: str
    user: str

    def apply(self, *manifests: Json) -> str:
        """Apply, as at each interval. Returns what was done, such as `created`; more than one word where it differs."""
        return " ".join(sorted(set(json.loads(self._run(manifests, "apply")).values())))

    def wait(self, *manifests: Json, seconds: int = 60) -> None:
        """Wait until all are as they should be. Raises FluxError, at once where one has failed for good."""
        self._run(manifests, "wait", f"{seconds}s")

    def prune(self, *manifests: Json) -> None:
        """Delete what is no longer in Git, and wait until it is gone."""
        assert set(json.loads(self._run(manifests, "prune")).values()) == {"deleted"}

    def writes(self, site: Site) -> list[Json]:
        """What Flux has written so far; its dry runs are no writes."""
        return [event for event in site.writes(self.user) if "dryRun=All" not in event["requestURI"]]

    def _run(self, manifests: Iterable[Json], *command: str) -> str:
        done = subprocess.run(
            [str(self.program), str(self.kubeconfig), self.namespace, *command],
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode != 0:
            raise FluxError(done.stderr.strip())
        return done.stdout
