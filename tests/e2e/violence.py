"""Ends what runs in a pod as a crash does: no signal is handled, no finalizer runs, nobody says good-bye."""

import contextlib
import os
import signal
from pathlib import Path

from demo.kubectl import Manifest, wait_until
from e2e.stack import READY_TIMEOUT, Served, is_ready


def kill_hard(served: Served, role: str) -> set[str]:
    """Kill every process of a role's pods, and delete them without a wait. Returns their names.

    Deleted, since a container that crashes again and again is started later and later.
    """
    pods = served.pods(role)
    for pod in pods:
        for process in processes_of(pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    names = {pod["metadata"]["name"] for pod in pods}
    served.kubectl.run("delete", "pod", *names, "-n", served.namespace, "--force", "--grace-period=0", "--wait=false")
    return names


def processes_of(pod: Manifest) -> list[int]:
    """Processes of a pod's containers: this machine is the node. The one that holds the pod's network is left out."""
    uid = pod["metadata"]["uid"]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # One that ends meanwhile has no files.
        with contextlib.suppress(OSError):
            if uid in (folder / "cgroup").read_text() and (folder / "comm").read_text().strip() != "pause":
                found.append(int(folder.name))
    assert found, f"no process of {pod['metadata']['name']} is on this machine"
    return found


def wait_replaced(served: Served, role: str, old: set[str], count: int = 1) -> None:
    """Wait until so many pods of a role are ready that are none of the old ones, and the resource says so."""

    def is_replaced() -> bool:
        new = [pod for pod in served.pods(role) if pod["metadata"]["name"] not in old]
        return len(new) == count and all(map(is_ready, new))

    wait_until(is_replaced, timeout=READY_TIMEOUT, what=f"{count} new {role} pods are ready")
    served.wait_for("Ready", "True")


def wait_gone(served: Served, role: str, count: int) -> None:
    """Wait until there are so many pods of a role, leaving ones counted."""
    selector = f"inference.disagg.io/name={served.name},inference.disagg.io/role={role}"
    wait_until(
        lambda: len(served.kubectl.items("pods", served.namespace, selector)) == count,
        timeout=180,
        what=f"{count} {role} pods, none of them leaving",
    )
