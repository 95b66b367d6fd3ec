"""What `mooncake_config.json` means: every key, checked and brought into the one form that all readers accept.

Readers are vLLM's parser, Mooncake's own, and ours. Sizes become integers of bytes, addresses full ones, booleans
booleans. `local_hostname` is not in the file that all pods share: each pod adds its own (`prepare`).
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from mooncake_store_connector.addresses import is_unroutable, join_host_port, split_host_port
from mooncake_store_connector.problems import ConfigError, Problem
from mooncake_store_connector.sizes import align_segment, parse_size

_T = TypeVar("_T")

P2P: Final = "P2PHANDSHAKE"
MODES: Final = ("embedded", "standalone-store")
PROTOCOLS: Final = ("tcp", "rdma", "efa", "ascend")
DEFAULT_SEGMENT_SIZE: Final = 4 * 2**30
DEFAULT_LOCAL_BUFFER_SIZE: Final = 2**30
DEFAULT_MASTER_PORT: Final = 50051
DEFAULT_METADATA_PORT: Final = 8080

# Keys that Mooncake or a vendor's reader knows and that pass through as they are.
_PASSED: Final = (
    "tenant_id",
    "enable_offload",
    "enable_client_http_server",
    "client_http_port",
    "use_ascend_direct",
    "alloc_in_same_node",
    "prefer_alloc_in_same_node",
    "preferred_segment",
    "replica_num",
    "with_hard_pin",
    "transfer_timeout",
)
_BOOLEANS: Final = (
    "enable_offload",
    "enable_client_http_server",
    "use_ascend_direct",
    "prefer_alloc_in_same_node",
    "alloc_in_same_node",
)
# Keys that some reader knows, but that change nothing with the engines that run here.
_WITHOUT_EFFECT: Final = {
    "enable_ssd_offload": "engines do not offload to disk by themselves; use mode standalone-store with enable_offload",
    "ssd_offload_path": "engines do not offload to disk by themselves; use mode standalone-store with enable_offload",
    "storage_root_dir": "the master's flag of that name decides",
    "preferred_segment": "the connector reads it from kv_connector_extra_config",
    "prefer_alloc_in_same_node": "the connector never asks for it: reads would skip a check of their lease",
    "alloc_in_same_node": "the connector never asks for it: reads would skip a check of their lease",
    "replica_num": "the connector writes one replica",
    "with_hard_pin": "the connector never pins",
    "transfer_timeout": "the environment variable MC_TRANSFER_TIMEOUT decides",
}
KNOWN_KEYS: Final = (
    "mode",
    "metadata_server",
    "master_server_address",
    "protocol",
    "device_name",
    "global_segment_size",
    "local_buffer_size",
    "local_hostname",
    *_PASSED,
    *_WITHOUT_EFFECT,
)
_SECRET: Final = re.compile(r"pass|token|secret|auth|credential|api_?key", re.IGNORECASE)


@dataclass(frozen=True)
class NormalisedConfig:
    """The keys in the form that every reader accepts, and sentences about what works but deserves a look."""

    values: dict[str, object]
    warnings: tuple[str, ...] = ()


@dataclass
class _Notes:
    """Faults and warnings, gathered so that a user sees all of them at once."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(self, parse: Callable[[], _T], default: _T) -> _T:
        """The parsed value, or `default` after noting why it cannot be parsed."""
        try:
            return parse()
        except ConfigError as error:
            self.problems += error.problems
            return default


HostRule = Callable[[str], bool]
"""Whether a host must not stand in a config file. Pods refuse loopback; one machine on its own need not."""


def accept_any_host(_host: str) -> bool:
    """The rule of a client that reads its own file: every host may be right on its machine."""
    return False


def normalise_config(
    raw: Mapping[str, object], *, path: str = "config", is_refused: HostRule = is_unroutable
) -> NormalisedConfig:
    """Check every key of `raw` and return the file's content. Raises ConfigError with every problem found.

    `path` is put before key names in messages, such as `spec.kvStore.config`. Values of keys that look like secrets
    are repeated nowhere. `is_refused` judges the hosts of addresses.
    """
    notes = _Notes()
    values: dict[str, object] = {}
    _check_names(raw, path, notes)
    mode = _mode(raw, path, notes)
    values["mode"] = mode
    values["metadata_server"] = notes.take(
        lambda: metadata_server(raw.get("metadata_server", P2P), path, is_refused), P2P
    )
    values["master_server_address"] = notes.take(lambda: _master(raw, path, is_refused), "")
    values["protocol"] = notes.take(lambda: _protocol(raw, path), "tcp")
    values["device_name"] = notes.take(lambda: _device_name(raw, path), "")
    _sizes(raw, mode, path, notes, values)
    _local_hostname(raw, path, notes)
    for key in filter(raw.__contains__, _PASSED):
        values[key] = notes.take(partial(_passed, key, raw[key], path), raw[key])
    if values["device_name"] and values["protocol"] == "tcp":
        notes.warnings.append(f"{path}.device_name: has no effect with protocol tcp")
    if str(values["metadata_server"]).startswith("etcd://"):
        notes.warnings.append(
            f"{path}.metadata_server: the published wheels of Mooncake have no etcd plug-in for metadata; the engine "
            "image needs a build with it, else use http:// or P2PHANDSHAKE"
        )
    if notes.problems:
        raise ConfigError(notes.problems)
    return NormalisedConfig(values, tuple(notes.warnings))


def _check_names(raw: Mapping[str, object], path: str, notes: _Notes) -> None:
    """Unknown keys are warned of; a dialect that we do not speak (its secrets included) is refused."""
    for key in raw:
        if key in _WITHOUT_EFFECT:
            notes.warnings.append(f"{path}.{key}: has no effect: {_WITHOUT_EFFECT[key]}")
        if key in KNOWN_KEYS:
            continue
        near = difflib.get_close_matches(key, KNOWN_KEYS, n=1, cutoff=0.6)
        nearest = f"; the nearest known key is {near[0]}" if near else ""
        if _SECRET.search(key):
            remedy = f"remove it; secrets belong in a Secret, and no reader knows this key{nearest}"
            notes.problems.append(Problem(f"{path}.{key}", "an unknown key that looks like a secret", remedy))
        elif key in _OTHER_DIALECTS:
            notes.problems.append(Problem(f"{path}.{key}", "a key of another product", _OTHER_DIALECTS[key]))
        else:
            notes.warnings.append(f"{path}.{key}: no reader knows this key{nearest}")


_OTHER_DIALECTS: Final = {
    "engine_ip": "remove it; each pod uses its own address",
    "engine_port": "remove it; ports are chosen by the transfer engine",
    "metadata_backend": "write the scheme into metadata_server, such as redis://host:6379",
    "prefill_url": "remove it; prefill and decode find each other through the store",
    "decode_url": "remove it; prefill and decode find each other through the store",
    "master_address": "write master_server_address",
}


def _mode(raw: Mapping[str, object], path: str, notes: _Notes) -> str:
    mode = raw.get("mode", "embedded")
    if mode not in MODES:
        notes.problems.append(Problem(f"{path}.mode", f"found {mode!r}", f"write {MODES[0]} or {MODES[1]}"))
        return MODES[0]
    return str(mode)


def _sizes(raw: Mapping[str, object], mode: str, path: str, notes: _Notes, values: dict[str, object]) -> None:
    default = DEFAULT_SEGMENT_SIZE if mode == "embedded" else 0
    key = f"{path}.global_segment_size"
    wished = notes.take(lambda: parse_size(raw.get("global_segment_size", default), key), default)
    segment = align_segment(wished)
    if mode == "standalone-store" and wished != 0:
        problem = Problem(
            key, f"found {wished} bytes", "with mode standalone-store it must be 0: the store has its own"
        )
        notes.problems.append(problem)
    elif mode == "embedded" and segment == 0:
        problem = Problem(key, f"found {wished} bytes", "with mode embedded it must be at least 16Mi")
        notes.problems.append(problem)
    elif segment != wished:
        notes.warnings.append(f"{key}: {wished} bytes are rounded down to {segment}, a multiple of 16Mi")
    values["global_segment_size"] = segment
    key = f"{path}.local_buffer_size"
    buffer = notes.take(
        lambda: parse_size(raw.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE), key), DEFAULT_LOCAL_BUFFER_SIZE
    )
    if buffer == 0:
        notes.problems.append(Problem(key, "found 0", "a client needs a transfer buffer, such as 1Gi"))
    values["local_buffer_size"] = buffer


def metadata_server(value: object, path: str, is_refused: HostRule = is_unroutable) -> str:
    """The metadata address in full form: P2PHANDSHAKE, http://host:port/metadata, etcd://... or redis://...

    Raises ConfigError.
    """
    where = f"{path}.metadata_server"
    remedy = f"write {P2P}, http://host:8080/metadata, redis://host:6379 or etcd://host:2379"
    if not isinstance(value, str) or not value.strip():
        raise ConfigError([Problem(where, "an empty address", remedy)])
    text = value.strip()
    if text.upper() == P2P:
        return P2P
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    if "@" in rest:
        raise ConfigError(
            [Problem(where, "an address with credentials in it", "credentials must not stand in this file")]
        )
    hosts, slash, tail = rest.partition("/")
    if scheme not in ("http", "https", "etcd", "redis"):
        raise ConfigError([Problem(where, f"found the scheme {scheme!r}", remedy)])
    joined = ",".join(_peer(host, scheme, where, remedy, is_refused) for host in hosts.split(","))
    if scheme in ("http", "https"):
        return f"{scheme}://{joined}/{tail.strip('/') or 'metadata'}"
    return f"{scheme}://{joined}{slash}{tail}"


_DEFAULT_PORTS: Final = {"http": DEFAULT_METADATA_PORT, "https": 443, "etcd": 2379, "redis": 6379}


def _peer(text: str, scheme: str, where: str, remedy: str, is_refused: HostRule) -> str:
    address = split_host_port(text)
    if address is None:
        raise ConfigError([Problem(where, f"found {text!r}, not a host and port", remedy)])
    if is_refused(address.host):
        problem = Problem(
            where, f"found {address.host}, which other pods cannot reach", "write a name or address they can"
        )
        raise ConfigError([problem])
    return join_host_port(address.host, address.port or _DEFAULT_PORTS[scheme])


def master_address(value: object, where: str, is_refused: HostRule = is_unroutable) -> str:
    """`host:port` of a master, with the default port when there is none. Raises ConfigError naming `where`."""
    remedy = "write host:port, such as mc.ops.svc:50051"
    address = split_host_port(value.strip()) if isinstance(value, str) else None
    if address is None:
        raise ConfigError([Problem(where, f"found {value!r}", remedy)])
    if is_refused(address.host):
        raise ConfigError([Problem(where, f"found {address.host}, which other pods cannot reach", remedy)])
    return join_host_port(address.host, address.port or DEFAULT_MASTER_PORT)


def _master(raw: Mapping[str, object], path: str, is_refused: HostRule) -> str:
    return master_address(raw.get("master_server_address"), f"{path}.master_server_address", is_refused)


def _protocol(raw: Mapping[str, object], path: str) -> str:
    value = raw.get("protocol", "tcp")
    text = value.strip().lower() if isinstance(value, str) else value
    if text not in PROTOCOLS:
        raise ConfigError([Problem(f"{path}.protocol", f"found {value!r}", f"write one of {', '.join(PROTOCOLS)}")])
    return str(text)


def _device_name(raw: Mapping[str, object], path: str) -> str:
    value = raw.get("device_name") or ""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        remedy = "write NIC names, such as mlx5_0,mlx5_1, or auto-discovery"
        raise ConfigError([Problem(f"{path}.device_name", f"found {value!r}", remedy)])
    return ",".join(name.strip() for name in names if name.strip())


def _local_hostname(raw: Mapping[str, object], path: str, notes: _Notes) -> None:
    if "local_hostname" in raw:
        notes.warnings.append(f"{path}.local_hostname: ignored: each pod uses its own address")


def _passed(key: str, value: object, path: str) -> object:
    """A key that is passed through, if its readers can read it; booleans may be spelled as words."""
    where = f"{path}.{key}"
    if key == "tenant_id" and not (value is None or isinstance(value, str)):
        raise ConfigError([Problem(where, f"found a {type(value).__name__}", "write a name")])
    if key == "client_http_port" and not (type(value) is int and 0 < value < 65536):
        raise ConfigError([Problem(where, f"found {value!r}", "write a port number, such as 9300")])
    if key not in _BOOLEANS or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise ConfigError([Problem(where, f"found {value!r}", "write true or false")])
