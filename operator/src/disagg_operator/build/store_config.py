"""What `mooncake_config.json` holds: the resource's fields, with its raw `kvStore.config` merged over them.

The connector package says what keys, sizes and addresses mean; here they are only brought together, and messages are
told by the field that the user wrote.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from mooncake_store_connector.addresses import split_host_port
from mooncake_store_connector.config import P2P, NormalisedConfig, normalise_config
from mooncake_store_connector.problems import ConfigError, Problem

from disagg_operator.api.kvstore import KVStoreSpec, MetadataType
from disagg_operator.api.names import PORT_ETCD, PORT_MASTER_ADMIN, PORT_MASTER_RPC, PORT_METADATA, Component
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.inputs import service_host

_RAW: Final = "spec.kvStore.config"
# The field that a key comes from, unless the raw config has it.
_FIELDS: Final = {
    "global_segment_size": "spec.kvStore.segmentSize",
    "local_buffer_size": "spec.kvStore.localBufferSize",
    "metadata_server": "spec.kvStore.metadata.external.address",
    "master_server_address": "spec.kvStore.master.external.address",
    "protocol": "spec.kvStore.protocol",
    "device_name": "spec.kvStore.devices",
}
_SCHEMES: Final = {MetadataType.HTTP: ("http", "https"), MetadataType.ETCD: ("etcd",), MetadataType.REDIS: ("redis",)}


@dataclass(frozen=True)
class StoreConfig:
    """The shared config file's content. `hints` are things that work but deserve a look."""

    values: dict[str, Any]
    hints: tuple[str, ...]

    @property
    def segment_size(self) -> int:
        """Bytes that each rank lends to the store."""
        return int(self.values["global_segment_size"])

    @property
    def buffer_size(self) -> int:
        """Bytes of each rank's transfer buffer."""
        return int(self.values["local_buffer_size"])

    @property
    def protocol(self) -> str:
        """How KV bytes travel."""
        return str(self.values["protocol"])


def derive_store_config(resource: DisaggregatedInference) -> StoreConfig:
    """The content, checked. Raises ConfigError with every problem found, paths of the raw config in it."""
    normalised = _normalise(resource)
    hints = tuple(_name_field(warning, resource) for warning in normalised.warnings)
    return StoreConfig(dict(normalised.values), (*hints, *_find_name_hints(resource, normalised)))


def find_store_problems(resource: DisaggregatedInference) -> list[Problem]:
    """What is wrong with the store's fields or its raw config."""
    try:
        values = _normalise(resource).values
    except ConfigError as error:
        return [Problem(_name_field(p.path, resource), p.found, p.remedy) for p in error.problems]
    return _find_scheme_problems(resource.spec.kv_store, str(values["metadata_server"]))


def has_own_master(resource: DisaggregatedInference) -> bool:
    """Whether a master is made for this resource."""
    return resource.spec.kv_store.master.external is None


def uses_own_master(resource: DisaggregatedInference) -> bool:
    """Whether engines speak to the master that is made: not where the raw config names another."""
    return has_own_master(resource) and "master_server_address" not in (resource.spec.kv_store.config or {})


def derive_master_health_url(resource: DisaggregatedInference) -> str | None:
    """Where a starting engine asks whether the master serves; None for a master of somebody else's."""
    if not uses_own_master(resource):
        return None
    return f"http://{service_host(resource, Component.MASTER)}:{PORT_MASTER_ADMIN}/health"


def _normalise(resource: DisaggregatedInference) -> NormalisedConfig:
    store = resource.spec.kv_store
    raw: dict[str, object] = {
        "metadata_server": _derive_metadata_server(resource),
        "master_server_address": _derive_master_address(resource),
        "global_segment_size": store.segment_size,
        "local_buffer_size": store.local_buffer_size,
        "protocol": store.protocol.value,
        "device_name": ",".join(store.devices),
        **(store.config or {}),
    }
    return normalise_config(raw, path=_RAW)


def _derive_master_address(resource: DisaggregatedInference) -> str:
    external = resource.spec.kv_store.master.external
    return external.address if external else f"{service_host(resource, Component.MASTER)}:{PORT_MASTER_RPC}"


def _derive_metadata_server(resource: DisaggregatedInference) -> str:
    metadata = resource.spec.kv_store.metadata
    if metadata.type is MetadataType.P2P:
        return P2P
    if metadata.external:
        return metadata.external.address
    host = service_host(resource, Component.METADATA)
    if metadata.type is MetadataType.ETCD:
        return f"etcd://{host}:{PORT_ETCD}"
    return f"http://{host}:{PORT_METADATA}/metadata"


def _name_field(text: str, resource: DisaggregatedInference) -> str:
    """The same message, told by the field that the key came from."""
    raw = resource.spec.kv_store.config or {}
    key = re.match(rf"{re.escape(_RAW)}\.(\w+)", text)
    if key is None or key[1] in raw or key[1] not in _FIELDS:
        return text
    return _FIELDS[key[1]] + text[key.end() :]


def _find_scheme_problems(store: KVStoreSpec, server: str) -> list[Problem]:
    external = store.metadata.external
    if external is None or "metadata_server" in (store.config or {}):
        return []
    schemes = _SCHEMES.get(store.metadata.type, ())
    if server.partition("://")[0] in schemes:
        return []
    remedy = f"with type {store.metadata.type.value} write {schemes[0]}://host:port, or set the type that it is"
    return [Problem(_FIELDS["metadata_server"], f"found {external.address!r}", remedy)]


def _find_name_hints(resource: DisaggregatedInference, config: NormalisedConfig) -> list[str]:
    hints = []
    for key in ("master_server_address", "metadata_server"):
        address = str(config.values[key])
        host = _read_host(address)
        if host and "." not in host and ":" not in host:
            where = _name_field(f"{_RAW}.{key}", resource)
            hints.append(
                f"{where}: {host} is a bare name, which resolves in the namespace {resource.metadata.namespace} alone; "
                f"for a Service of another namespace write {host}.<namespace>.svc"
            )
    if has_own_master(resource) and not uses_own_master(resource):
        hints.append(
            f"{_RAW}.master_server_address: engines use this master, and the one made for this resource stands idle; "
            "write the address into spec.kvStore.master.external.address instead"
        )
    return hints


def _read_host(address: str) -> str:
    """The host of an address, empty where there is none or more than one."""
    rest = address.rpartition("://")[2].partition("/")[0]
    parsed = split_host_port(rest)
    return parsed.host if parsed and rest != P2P else ""
