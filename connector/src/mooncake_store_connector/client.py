"""A client of the Mooncake store, made from the config file. Importing this imports neither vLLM, torch nor Mooncake.

Mooncake's own `setup` tries for 90 s when no master listens, whatever the timeouts say. So the master's port is tried
first, and callers stay off the engine's threads.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mooncake_store_connector.addresses import split_host_port
from mooncake_store_connector.config import DEFAULT_MASTER_PORT, accept_any_host, normalise_config
from mooncake_store_connector.problems import ConfigError, Problem

CONFIG_ENV: Final = "MOONCAKE_CONFIG_PATH"
LEAST_BUFFER: Final = 16 << 20
"""Bytes of its own buffer for a client that moves nothing through it."""
_CONNECT_SECONDS: Final = 2.0
# Mooncake reads these when its library is loaded. Its own defaults wait 30 s for a master that hangs.
_ENVIRONMENT: Final = {"MC_RPC_TIMEOUT_MS": "2000", "MC_RPC_CONNECT_TIMEOUT_MS": "2000"}


class StoreUnavailable(Exception):  # noqa: N818 - a state of the world, not a mistake
    """There is no store to join, or it did not take us. The text says why."""


@dataclass(frozen=True)
class ClientConfig:
    """What a client needs of the config file. Sizes in bytes."""

    local_hostname: str
    metadata_server: str
    master: str
    protocol: str
    device: str
    segment_size: int
    local_buffer_size: int
    tenant: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ClientConfig":
        """From the values of a normalised config, with `local_hostname` beside them."""
        return cls(
            local_hostname=str(values.get("local_hostname") or own_address(str(values["master_server_address"]))),
            metadata_server=str(values["metadata_server"]),
            master=str(values["master_server_address"]),
            protocol=str(values["protocol"]),
            device=str(values["device_name"]),
            segment_size=int(values["global_segment_size"]),
            local_buffer_size=int(values["local_buffer_size"]),
            tenant=str(values.get("tenant_id") or "default"),
        )


def read_config(path: Path, defaults: Mapping[str, object] | None = None) -> ClientConfig:
    """The config file's content, checked; `defaults` stand for keys it lacks. Raises ConfigError."""
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError([Problem(str(path), f"cannot be read ({error.strerror})", "name a readable file")]) from error
    except ValueError as error:
        raise ConfigError([Problem(str(path), f"not JSON ({error})", "the file must hold one JSON object")]) from error
    if not isinstance(raw, dict):
        found = f"found a {type(raw).__name__}"
        raise ConfigError([Problem(str(path), found, "the file must hold one JSON object")])
    wished = dict(defaults or {})
    if raw.get("mode") == "standalone-store":
        # There is but one size for this mode, which the default of the other must not hide.
        wished.pop("global_segment_size", None)
    values = normalise_config({**wished, **raw}, path=str(path), is_refused=accept_any_host).values
    return ClientConfig.of({**values, "local_hostname": raw.get("local_hostname")})


def why_unreachable(master: str) -> str:
    """Why nothing listens at the master's address, or an empty string. Takes at most two seconds."""
    target = split_host_port(master)
    if target is None:
        return f"{master} is not a host and port"
    try:
        with socket.create_connection((target.host, target.port or DEFAULT_MASTER_PORT), timeout=_CONNECT_SECONDS):
            return ""
    except OSError as error:
        return f"{master}: {error}"


def open_client(config: ClientConfig) -> Any:
    """A `MooncakeDistributedStore` that has joined. Blocks for seconds at worst. Raises StoreUnavailable."""
    if reason := why_unreachable(config.master):
        raise StoreUnavailable(reason)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if config.protocol == "tcp":
        os.environ.setdefault("MC_FORCE_TCP", "1")
    try:
        from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415 - only where there is a store to join
    except ImportError as error:
        msg = f"Mooncake's Python package cannot be imported: {error}"
        raise StoreUnavailable(msg) from error
    client = MooncakeDistributedStore()
    code = client.setup(
        config.local_hostname,
        config.metadata_server,
        config.segment_size,
        config.local_buffer_size,
        config.protocol,
        config.device,
        config.master,
        **({"tenant_id": config.tenant} if config.tenant != "default" else {}),
    )
    if code != 0:
        client.close()
        raise StoreUnavailable(explain_refusal(config, code))
    return client


def explain_refusal(config: ClientConfig, code: int) -> str:
    """Why a store did not take a client, as far as the code and the protocol tell; Mooncake logs the rest itself."""
    told = f"the store at {config.master} did not take us: code {code}"
    if config.protocol == "tcp":
        return told
    return (
        f"{told}. If Mooncake's lines above have 'Cannot allocate memory' or max_mr_size, no memory lacks: raise the "
        f"node's memlock limit, or lower the segment of {config.segment_size} bytes to what the NIC takes as one region"
    )


def placement_near(segment: str) -> Any:
    """Where a put should go: that segment first."""
    from mooncake.store import ReplicateConfig  # noqa: PLC0415 - only where there is a store

    placement = ReplicateConfig()
    placement.preferred_segment = segment
    return placement


def own_address(master: str) -> str:
    """The machine's address on the way to the master; loopback when there is no way. Sends nothing."""
    target = split_host_port(master)
    if target is None:
        return "127.0.0.1"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            target.host, target.port or DEFAULT_MASTER_PORT, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
