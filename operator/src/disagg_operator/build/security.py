"""Pod Security "restricted" for every pod. Only RDMA may ask for more, and only where the resource says so."""

from disagg_operator.build.inputs import Manifest

# A number, since the kubelet cannot judge runAsNonRoot by a name. Images need no such user: nothing looks it up.
USER_ID = 65532


def build_pod_security() -> Manifest:
    """The securityContext of a pod. The group owns mounted volumes, so that a non-root user can write its caches."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def build_container_security(*capabilities: str) -> Manifest:
    """The securityContext of a container: nothing but the named capabilities."""
    dropped: Manifest = {"drop": ["ALL"]}
    if capabilities:
        dropped["add"] = list(capabilities)
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": dropped}
