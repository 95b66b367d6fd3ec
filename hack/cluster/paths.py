"""Where everything lies. Caches outlive the cluster; the other directories are its own and go with it."""

import os
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
"""Go modules that pin what is built."""

STATE = Path("/var/lib/disagg-cluster")
"""Certificates, etcd's data, containers, logs, kubelet's root. `down` removes it."""

RUN = Path("/run/disagg-cluster")
"""Sockets, and mounts of pods' network namespaces. `down` removes it."""

REGISTRY_RUN = Path("/run/disagg-registry")
"""The registry's record, configuration and log. It may run without a cluster."""


def cache() -> Path:
    """The cache that outlives every cluster: `$XDG_CACHE_HOME` or `~/.cache`, below it our name."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "disaggregated-inference"


def binaries() -> Path:
    """The directory of built binaries."""
    return cache() / "bin"


def binary(name: str) -> Path:
    """A built binary, whether it is there or not."""
    return binaries() / name


def kubeconfig() -> Path:
    """The administrator's kubeconfig of the running cluster."""
    return STATE / "admin.kubeconfig"


def audit_log() -> Path:
    """One JSON event a line for every mutating request that the API server saw."""
    return STATE / "audit.log"
