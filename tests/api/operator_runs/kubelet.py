"""What a kubelet would do, by a script: pods become ready, and an operator that ended is started again."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from api.operator_runs.site import Json, Operator, Site


@contextmanager
def pods_become_ready(site: Site, *, scheduled: bool = False) -> Iterator[None]:
    """Pods of the namespace are ready as soon as they are there, and gone when they should be, while the block runs.

    With `scheduled`, those are ready that have a node.
    """
    stop = threading.Event()

    def tend() -> None:
        while not stop.wait(0.2):
            answer = site.rest.ask("GET", site.path("pods"))
            for pod in answer.body.get("items", []) if answer.code == 200 else []:
                name = pod["metadata"]["name"]
                # Any of them may be gone by now, so whatever is answered is right.
                if "deletionTimestamp" in pod["metadata"]:
                    site.rest.ask("DELETE", site.path("pods", name), {"gracePeriodSeconds": 0})
                elif not _is_ready(pod) and (not scheduled or "nodeName" in pod["spec"]):
                    _make_ready(site, name)

    thread = threading.Thread(target=tend)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _make_ready(site: Site, name: str) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    body = {"status": {"phase": "Running", "startTime": now, "conditions": [ready]}}
    site.rest.ask("PATCH", f"{site.path('pods', name)}/status", body, "application/merge-patch+json")


@contextmanager
def kept_running(site: Site, *args: str, everywhere: bool = False) -> Iterator[list[Operator]]:
    """An operator that is started again a second after it ended. Gives all that were started, the present one last."""
    stop = threading.Event()
    started = [site.start(*args, everywhere=everywhere)]

    def keep() -> None:
        while not stop.wait(0.2):
            if not started[-1].program.running and not stop.wait(1):
                started.append(site.start(*args, everywhere=everywhere))

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield started
    finally:
        stop.set()
        thread.join(60)
        for operator in started:
            operator.program.end()
