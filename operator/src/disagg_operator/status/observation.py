"""What is seen of one resource's workloads, as plain facts. Reading them off manifests is pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from disagg_operator.api.names import LABEL_ROLE, Component

Manifest = dict[str, Any]

_BAD_WAITING: Final = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
_MAX_MESSAGE: Final = 400


@dataclass(frozen=True)
class Part:
    """One workload: counts, whether its controller has caught up, and what is wrong with its pods."""

    component: Component
    wished: int
    exists: bool = False
    replicas: int = 0
    ready: int = 0
    updated: int = 0
    is_observed: bool = False
    has_completed: bool = False
    is_stuck: bool = False
    failures: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether exactly the wished pods are there, all of the present revision and ready."""
        counts = (self.replicas, self.ready, self.updated)
        return self.exists and self.is_observed and counts == (self.wished, self.wished, self.wished)

    @property
    def is_lost(self) -> bool:
        """Whether pods are wished and none serves, though the rollout had come to its end before."""
        return self.wished > 0 and self.ready == 0 and self.has_completed


@dataclass(frozen=True)
class Observation:
    """All parts of one resource, and what the master says. `segments` is None when it could not be asked."""

    parts: dict[Component, Part]
    segments: int | None = None


def observe_part(component: Component, desired: Manifest, live: Manifest | None, pods: Iterable[Manifest]) -> Part:
    """Facts about one workload, from its manifest, its live object and its pods."""
    wished = int(desired["spec"]["replicas"])
    if live is None:
        return Part(component, wished)
    status = live.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    progressing = conditions.get("Progressing", {})
    failures = [message for pod in pods for message in pod_failures(pod)]
    if conditions.get("ReplicaFailure", {}).get("status") == "True":
        failures.insert(0, str(conditions["ReplicaFailure"].get("message", "pods cannot be made")))
    return Part(
        component,
        wished,
        exists=True,
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", status.get("replicas", 0) if desired["kind"] != "Deployment" else 0),
        is_observed=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0),
        has_completed=progressing.get("reason") == "NewReplicaSetAvailable",
        is_stuck=progressing.get("reason") == "ProgressDeadlineExceeded",
        failures=tuple(failures[:3]),
    )


def pods_of(component: Component, pods: Iterable[Manifest]) -> list[Manifest]:
    """Pods of one part that are not leaving."""
    return [
        pod
        for pod in pods
        if pod["metadata"].get("labels", {}).get(LABEL_ROLE) == component and "deletionTimestamp" not in pod["metadata"]
    ]


def pod_failures(pod: Manifest) -> list[str]:
    """What keeps a pod from running, one sentence each: images, crashes with their last words, scheduling."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    found = []
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            found.append(f"pod {name} cannot be scheduled: {condition.get('message', '')}")
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        found += _container_failures(name, container)
    return [message[:_MAX_MESSAGE] for message in found]


def _container_failures(pod: str, container: Manifest) -> list[str]:
    where = f"pod {pod}, container {container['name']}"
    waiting = container.get("state", {}).get("waiting", {})
    last = container.get("lastState", {}).get("terminated") or container.get("state", {}).get("terminated") or {}
    if waiting.get("reason") == "CrashLoopBackOff" or (
        last and last.get("exitCode", 0) != 0 and not container["ready"]
    ):
        words = _last_words(last.get("message", ""))
        cause = last.get("reason", "Error")
        code = f" (exit {last['exitCode']})" if "exitCode" in last else ""
        return [f"{where} ended: {cause}{code}{': ' + words if words else ''}"]
    if waiting.get("reason") in _BAD_WAITING:
        return [f"{where} does not start: {waiting['reason']}: {waiting.get('message', '')}"]
    return []


def _last_words(message: str) -> str:
    """The last line of an engine's log that tells something."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1][-300:]
