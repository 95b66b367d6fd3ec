"""Pod Security Standards as a function: which controls of level "restricted" a pod violates."""

from collections.abc import Iterator
from typing import Any

Spec = dict[str, Any]

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SECCOMP = {"RuntimeDefault", "Localhost"}


def find_violations(pod: Spec) -> list[str]:
    """Controls that the pod violates, empty when the level "restricted" admits it."""
    return [*_judge_pod(pod), *(found for container in _containers(pod) for found in _judge_container(pod, container))]


def _containers(pod: Spec) -> list[Spec]:
    return [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]


def _judge_pod(pod: Spec) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    for volume in pod.get("volumes", []):
        kinds = volume.keys() - {"name"}
        if not kinds <= _VOLUMES:
            yield f"volume {volume['name']}: {', '.join(sorted(kinds))}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def _judge_container(pod: Spec, container: Spec) -> Iterator[str]:
    name, own = container["name"], container.get("securityContext", {})
    shared = {**pod.get("securityContext", {}), **own}
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if shared.get("runAsNonRoot") is not True:
        yield f"{name}: runAsNonRoot"
    if shared.get("runAsUser") == 0:
        yield f"{name}: runAsUser"
    if shared.get("seccompProfile", {}).get("type") not in _SECCOMP:
        yield f"{name}: seccompProfile"
    if "ALL" not in own.get("capabilities", {}).get("drop", []):
        yield f"{name}: capabilities.drop"
    if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities.add"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    for port in container.get("ports", []):
        if port.get("hostPort"):
            yield f"{name}: hostPort"
