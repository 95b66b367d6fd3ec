"""What an engine pod does before its engine starts: write its own config file, and wait for the store a while.

The ConfigMap is one for all pods, but `local_hostname` must be the pod's own address, or peers would read from the
wrong pod. The wait ends by readiness or by its limit; past it the engine serves without the store, and the pod's status
tells what was tried.
"""

import array
import contextlib
import fcntl
import http.client
import json
import os
import socket
import struct
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from mooncake_store_connector.addresses import split_host_port
from mooncake_store_connector.config import DEFAULT_MASTER_PORT, P2P, normalise_config
from mooncake_store_connector.problems import ConfigError, Problem

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""A kubelet puts this file into containers; what it holds when a container has ended stands in the pod's status."""
_PROBE_SECONDS: Final = 2.0
_SIOCGIFADDR: Final = 0x8915


@dataclass(frozen=True)
class MasterState:
    """Whether the master serves, and if not, what was seen."""

    is_ready: bool
    seen: str


@dataclass(frozen=True)
class Prepared:
    """How it went, in a sentence; and what keeps the engine from the store, empty where nothing does."""

    told: str
    obstacle: str


def read_object(text: str) -> dict[str, object]:
    """The JSON object that a config file holds. Raises ConfigError."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        remedy = "the file must hold one JSON object"
        raise ConfigError([Problem("config", f"not JSON ({error})", remedy)]) from error
    if not isinstance(raw, dict):
        raise ConfigError([Problem("config", f"found a {type(raw).__name__}", "the file must hold one JSON object")])
    return raw


def pod_config(template: str, address: str) -> str:
    """The pod's own config file: the checked template with `local_hostname` in it. Raises ConfigError."""
    values = {**normalise_config(read_object(template)).values, "local_hostname": address}
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def pod_address(interface: str | None) -> str:
    """The pod's address: POD_IP, or that of a named interface. Raises ConfigError."""
    if interface is None:
        address = os.environ.get("POD_IP", "").strip()
        if not address:
            remedy = "set it from status.podIP by the downward API"
            raise ConfigError([Problem("POD_IP", "not set", remedy)])
        return address
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        remedy = f"this pod has {', '.join(names)}; name one of them or attach the network"
        raise ConfigError([Problem("spec.kvStore.interface", f"no interface {interface!r} in this pod", remedy)])
    return _interface_address(interface)


def _interface_address(interface: str) -> str:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            remedy = "give it an address, or name another interface"
            problem = Problem("spec.kvStore.interface", f"{interface!r} has no IPv4 address", remedy)
            raise ConfigError([problem]) from error
    return socket.inet_ntoa(array.array("B", reply)[20:24].tobytes())


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def master_state(address: str, health_url: str | None) -> MasterState:
    """Ask the master once, at most a few seconds: its health page when there is one, else its RPC port."""
    if health_url is not None:
        return _health_state(health_url)
    target = split_host_port(address)
    if target is None:
        return MasterState(False, f"{address!r} is not a host and port")
    try:
        with socket.create_connection((target.host, target.port or DEFAULT_MASTER_PORT), timeout=_PROBE_SECONDS):
            return MasterState(True, "accepts connections")
    except OSError as error:
        return MasterState(False, explain_connect_error(address, error))


def explain_connect_error(address: str, error: OSError) -> str:
    """A connection error with its likely cause. urllib wraps one in an error of its own."""
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, OSError) else OSError(error.reason)
    if isinstance(error, socket.gaierror):
        return f"{address}: the name does not resolve (is the Service there, and in this namespace?)"
    if isinstance(error, ConnectionRefusedError):
        return f"{address}: connection refused (wrong port, or no ready master behind the Service)"
    if isinstance(error, TimeoutError):
        return f"{address}: no answer (a NetworkPolicy, or an address that nobody has)"
    return f"{address}: {error}"


def _health_state(url: str) -> MasterState:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_SECONDS) as response:  # noqa: S310 - http URL of the operator
            health = json.loads(response.read(65536))
    except urllib.error.HTTPError as error:
        return MasterState(False, f"{url}: HTTP {error.code}")
    except urllib.error.URLError as error:
        return MasterState(False, explain_connect_error(url, error))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return MasterState(False, f"{url}: {error!r}")
    is_ready = isinstance(health, dict) and bool(health.get("service_ready"))
    return MasterState(is_ready, f"{url}: service_ready is {is_ready}")


def find_metadata_fault(server: str) -> str:
    """Why clients cannot use a metadata service, asked once for each of its hosts; empty when they can.

    Without a key Mooncake's service answers 400 at its own path, and 404 at any other.
    """
    if server == P2P:
        return ""
    if server.startswith(("http://", "https://")):
        return _http_metadata_fault(server)
    hosts = server.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")
    faults = [master_state(host, None) for host in hosts]
    return "" if any(fault.is_ready for fault in faults) else faults[0].seen


def _http_metadata_fault(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_SECONDS):  # noqa: S310 - http, as the config was checked
            return ""
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return f"{url}: HTTP 404 (no metadata service at this path; Mooncake's own is at /metadata)"
        return f"{url}: HTTP {error.code}" if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
    except OSError as error:
        return explain_connect_error(url, error)
    except http.client.HTTPException as error:
        return f"{url}: not HTTP ({error!r})"


def store_state(address: str, health_url: str | None, metadata: str) -> MasterState:
    """Ask the master, and the metadata service if the master is ready."""
    state = master_state(address, health_url)
    fault = find_metadata_fault(metadata) if state.is_ready else ""
    return MasterState(False, fault) if fault else state


def wait_for_store(address: str, health_url: str | None, seconds: float, metadata: str = P2P) -> MasterState:
    """Ask until the store can be used, at most `seconds`; tells each new state on standard error."""
    deadline = time.monotonic() + seconds
    said = ""
    while True:
        state = store_state(address, health_url, metadata)
        if state.is_ready or time.monotonic() >= deadline:
            return state
        if state.seen != said:
            print(f"waiting for the Mooncake store: {state.seen}", file=sys.stderr, flush=True)
            said = state.seen
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


def prepare(template: Path, output: Path, *, interface: str | None, health_url: str | None, wait_ms: int) -> Prepared:
    """Write the pod's config and wait for the store."""
    text = pod_config(template.read_text(), pod_address(interface))
    write_atomically(output, text)
    values = json.loads(text)
    address = values["master_server_address"]
    state = wait_for_store(address, health_url, wait_ms / 1000, values["metadata_server"])
    wrote = f"wrote {output} for {values['local_hostname']}"
    if state.is_ready:
        return Prepared(f"{wrote}; the Mooncake master at {address} is ready", "")
    obstacle = f"the Mooncake store was not ready after {wait_ms / 1000:.0f} s: {state.seen}"
    return Prepared(f"{wrote}; {obstacle}. The engine starts all the same", obstacle)


def leave_note(text: str, path: Path = TERMINATION_LOG) -> None:
    """Leave a few words for the pod's status, if a kubelet asks for them. It reads 4 KiB at most."""
    with contextlib.suppress(OSError):
        if path.exists():
            path.write_text(text)
