"""What is seen of one resource's workloads, as plain facts. Reading them off manifests is pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from disagg_operator.api.names import ENGINE_ROLES, LABEL_ROLE, Component
from disagg_operator.build.engine_pod import INIT
from disagg_operator.status.remedies import find_remedy

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
_CREATION_WARNINGS: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"})
_MAX_MESSAGE: Final = 400
_MAX_FAILURES: Final = 3


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
    def is_behind(self) -> bool:
        """Whether pods are not yet of the present revision, or not there."""
        return self.exists and self.is_observed and (self.updated < self.wished or self.updated < self.replicas)

    @property
    def is_settled(self) -> bool:
        """Whether exactly the wished pods are there, all of the present revision and ready."""
        counts = (self.replicas, self.ready, self.updated)
        return self.exists and self.is_observed and counts == (self.wished, self.wished, self.wished)

    @property
    def is_rolling(self) -> bool:
        """Whether pods are being replaced, or the controller has yet to see whether they must be. Not when stuck."""
        return self.exists and not self.is_stuck and (not self.is_observed or self.updated < self.replicas)

    @property
    def is_lost(self) -> bool:
        """Whether pods are wished and none serves, though the rollout had come to its end before.

        So is a part that was scaled up from zero. Its Deployment is the same as one that lost its pods, but for times:
        neither is a rollout, and the pods of both are new. Calling a loss a start would be worse.
        """
        return self.wished > 0 and self.ready == 0 and self.has_completed


@dataclass(frozen=True)
class Observation:
    """All parts of one resource, and what the master says.

    `segments` are the names of all that are registered, None when the master could not be asked. `shared` counts
    those of ready engines: a segment outlives its engine for a while. `is_creating`: a pod's containers are being made
    ready, of which no event of the pod tells. `additions` are sentences about what others have added to workloads.
    `store_note` is what an engine pod said of the store when it started without it; empty when none did.
    """

    parts: dict[Component, Part]
    segments: tuple[str, ...] | None = None
    shared: int = 0
    is_creating: bool = False
    additions: tuple[str, ...] = ()
    store_note: str = ""


def observe_part(
    component: Component,
    wanted: Manifest | None,
    live: Manifest | None,
    pods: list[Manifest],
    warnings: Mapping[str, str] = MappingProxyType({}),
) -> Part:
    """Facts about one workload: from its manifest where one is wanted, its live object and its pods.

    One of the two manifests must be given. A manifest without a count leaves it to whoever scales the live object.
    A pod for which there is no room is no failure while others of its part are leaving: they make room.
    `warnings` has what the kubelet told last about pods that it cannot start, by the pods' names.
    """
    wished = (wanted or {}).get("spec", {}).get("replicas")
    if wished is None:
        wished = (live or {}).get("spec", {}).get("replicas", 1)
    if live is None:
        return Part(component, int(wished))
    status = live.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    progressing, refused = conditions.get("Progressing", {}), conditions.get("ReplicaFailure", {})
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    failures = [message for pod in staying for message in _container_failures_of(pod)]
    if len(staying) == len(pods):
        failures = [*(message for pod in pods for message in _scheduling_failures(pod)), *failures]
    failures += [warnings[pod["metadata"]["name"]] for pod in staying if pod["metadata"]["name"] in warnings]
    if refused.get("status") == "True":
        failures.insert(0, f"pods cannot be made: {refused.get('message', '')}"[:_MAX_MESSAGE])
    return Part(
        component,
        int(wished),
        exists=True,
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        is_observed=_has_caught_up(live),
        has_completed=_has_completed(live, conditions),
        is_stuck=progressing.get("reason") == "ProgressDeadlineExceeded",
        failures=tuple(dict.fromkeys(failures))[:_MAX_FAILURES],
    )


def _has_completed(live: Manifest, conditions: Mapping[str, Manifest]) -> bool:
    """Whether the last rollout came to its end. Of a paused one that has pods, nobody says; they have served."""
    if live["kind"] != "Deployment":
        return bool(conditions.get("Available", {}).get("status") == "True")
    reason = conditions.get("Progressing", {}).get("reason")
    has_pods = live.get("status", {}).get("replicas", 0) > 0
    return reason == "NewReplicaSetAvailable" or (bool(live["spec"].get("paused")) and has_pods)


def _has_caught_up(live: Manifest) -> bool:
    """Whether the workload's controller has seen the present spec. Not every kind tells."""
    status = live.get("status", {})
    if "observedGeneration" not in status and live["kind"] != "Deployment":
        return bool(status)
    return bool(status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0))


def pods_of(component: Component, pods: Iterable[Manifest]) -> list[Manifest]:
    """Pods of one part, leaving ones included; where a replica spans nodes, those of the other nodes too."""
    roles = (component.value, f"{component.value}-worker")
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(LABEL_ROLE) in roles]


def count_shared(segments: Iterable[str], pods: Iterable[Manifest]) -> int:
    """Segments that belong to ready engine pods. A segment is named after its pod's address."""
    addresses = {
        address["ip"]
        for pod in pods
        if is_ready(pod) and pod["metadata"].get("labels", {}).get(LABEL_ROLE) in ENGINE_ROLES
        for address in pod["status"].get("podIPs", [])
    }
    return sum(1 for segment in segments if _host(segment) in addresses)


def find_store_note(pods: Iterable[Manifest]) -> str:
    """What the newest engine pod that started without the store said of it; empty when all of them found it.

    Each says it once, before its engine starts. An engine joins later on its own, and nobody takes the note back.
    """
    told = [
        (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"], note)
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and (note := _store_note(pod))
    ]
    if not told:
        return ""
    _, name, note = max(told)
    return f"pod {name} said at its start: {note}"[:_MAX_MESSAGE]


def _store_note(pod: Manifest) -> str:
    for container in pod.get("status", {}).get("initContainerStatuses", []):
        ended = container.get("state", {}).get("terminated") or {}
        if container["name"] == INIT and ended.get("exitCode") == 0:
            return str(ended.get("message", "")).strip()
    return ""


def is_ready(pod: Manifest) -> bool:
    """Whether a pod takes requests."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _host(segment: str) -> str:
    """The address in `10.0.0.1:1234`, `[fd00::1]:1234` or without a port."""
    if segment.startswith("["):
        return segment[1:].partition("]")[0]
    return segment if segment.count(":") > 1 else segment.partition(":")[0]


def pod_failures(pod: Manifest) -> list[str]:
    """What keeps a pod from running, one sentence each: images, crashes with their last words, scheduling."""
    return [*_scheduling_failures(pod), *_container_failures_of(pod)]


def _scheduling_failures(pod: Manifest) -> list[str]:
    name = pod["metadata"]["name"]
    return [
        f"pod {name} cannot be scheduled: {condition.get('message', '')}"[:_MAX_MESSAGE]
        for condition in pod.get("status", {}).get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def _container_failures_of(pod: Manifest) -> list[str]:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return [message[:_MAX_MESSAGE] for container in containers for message in _container_failures(name, container)]


def is_creating(pod: Manifest) -> bool:
    """Whether the kubelet is making ready what a pod's containers need. Why that hangs stands in events alone."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return False
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return any(one.get("state", {}).get("waiting", {}).get("reason") == "ContainerCreating" for one in containers) or (
        # With init containers, all wait as PodInitializing until volumes are mounted.
        bool(containers) and all("waiting" in one.get("state", {}) for one in containers) and not pod_failures(pod)
    )


def last_warning(pod: Manifest, events: Iterable[Manifest]) -> str:
    """The kubelet's last warning about a pod that does not start; empty when there is none."""
    name = pod["metadata"]["name"]
    told = [event for event in events if event.get("reason") in _CREATION_WARNINGS]
    if not told:
        return ""
    last = max(told, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return f"pod {name} does not start: {last['reason']}: {last.get('message', '')}"[:_MAX_MESSAGE]


def _container_failures(pod: str, container: Manifest) -> list[str]:
    where = f"pod {pod}, container {container['name']}"
    waiting = container.get("state", {}).get("waiting", {})
    last = container.get("lastState", {}).get("terminated") or container.get("state", {}).get("terminated") or {}
    if waiting.get("reason") == "CrashLoopBackOff" or (
        last and last.get("exitCode", 0) != 0 and not container["ready"]
    ):
        log = last.get("message", "")
        words = find_remedy(log) or _last_words(log)
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
