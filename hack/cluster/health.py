"""How well each part of the cluster is: asked of the part itself, not read from a list of processes."""

import json
import socket
import ssl
import struct
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster import binaries, control_plane, network, node, paths, registry
from cluster.control_plane import Plane
from cluster.processes import Processes

DNS_NAME = "kubernetes.default.svc.cluster.local"


@dataclass(frozen=True)
class Component:
    """One line of `status`."""

    name: str
    is_healthy: bool
    version: str
    told: str


def kubectl(*args: str, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """kubectl as administrator."""
    command = [str(paths.binary("kubectl")), "--kubeconfig", str(paths.kubeconfig()), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def components(plane: Plane, running: Processes) -> list[Component]:
    """Every part of the cluster, in the order in which they start."""
    asks: dict[str, Callable[[], bool]] = {
        "etcd": lambda: answers(f"http://127.0.0.1:{plane.etcd_port}/health"),
        "kube-apiserver": lambda: control_plane.is_api_ready(plane),
        "kube-controller-manager": lambda: answers("https://127.0.0.1:10257/healthz"),
        "kube-scheduler": lambda: answers("https://127.0.0.1:10259/healthz"),
        "containerd": is_containerd_ready,
        "coredns": is_dns_ready,
        "kubelet": lambda: answers("http://127.0.0.1:10248/healthz"),
        "kube-proxy": lambda: answers("http://127.0.0.1:10256/healthz"),
    }
    parts = [_component(name, running, is_well) for name, is_well in asks.items()]
    told = registry.ADDRESS if registry.is_healthy() else "not running"
    parts.append(Component("registry", told == registry.ADDRESS, "", told))
    ready = is_node_ready()
    parts.append(Component("node", ready, "", f"{node.NAME} is {'Ready' if ready else 'not Ready'}"))
    return parts


def _component(name: str, running: Processes, is_well: Callable[[], bool]) -> Component:
    identity = running.identity(name)
    if identity is None or not running.alive(name):
        return Component(name, False, "", "not running")
    well = is_well()
    where = f"pid {identity.pid}" if well else f"pid {identity.pid} does not answer; its log is {running.log(name)}"
    return Component(name, well, binaries.pinned_version(name), where)


def table(parts: Sequence[Component]) -> str:
    """The parts as aligned columns."""
    rows = [("COMPONENT", "STATE", "VERSION", "WHERE")]
    rows += [
        (part.name, "healthy" if part.is_healthy else "NOT WELL", part.version or "-", part.told) for part in parts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)


def answers(url: str) -> bool:
    """Whether a loopback health endpoint answers 200. Its certificate is made by itself, so there is none to check."""
    context = ssl._create_unverified_context() if url.startswith("https:") else None  # noqa: S323 - loopback only
    try:
        with urllib.request.urlopen(url, context=context, timeout=3) as answer:  # noqa: S310 - our own URLs
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def is_containerd_ready() -> bool:
    """Whether containerd answers on its socket."""
    command = [str(paths.binary("ctr")), "--address", str(node.SOCKET), "--timeout", "3s", "version"]
    return subprocess.run(command, capture_output=True, check=False, timeout=15).returncode == 0


def is_node_ready() -> bool:
    """Whether the API server says that the node is Ready."""
    if not paths.kubeconfig().exists():
        return False
    done = kubectl("get", "node", node.NAME, "-o", "json", "--request-timeout=5s", timeout=15)
    if done.returncode != 0:
        return False
    conditions = json.loads(done.stdout)["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def has_default_account() -> bool:
    """Whether pods may be made in the default namespace."""
    return kubectl("get", "serviceaccount", "default", "--namespace=default").returncode == 0


def build_dns_query(name: str) -> bytes:
    """A DNS question for the IPv4 address of a name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)


def has_answer(reply: bytes) -> bool:
    """Whether a DNS reply is without error and holds at least one record."""
    if len(reply) < 12:
        return False
    flags, records = int.from_bytes(reply[2:4], "big"), int.from_bytes(reply[6:8], "big")
    return flags & 0x000F == 0 and records > 0


def is_dns_ready() -> bool:
    """Whether CoreDNS knows the API server's name, so it has read the cluster's Services."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(2)
        try:
            asker.sendto(build_dns_query(DNS_NAME), (network.NODE_ADDRESS, 53))
            return has_answer(asker.recv(512))
        except OSError:
            return False
