"""The Mooncake store: what engines lend to it, its master, and its metadata service."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, WithJsonSchema

from disagg_operator.api.base import (
    ApiModel,
    Duration,
    Freeform,
    ImageName,
    Resources,
    Size,
    duration_range,
    size_range,
)
from disagg_operator.api.rules import (
    HOST_PORT_PATTERN,
    LOOPBACK_PATTERN,
    JsonObject,
    is_zero_size,
    rule,
    with_rules,
)

_MASTER_ADDRESS: Final = with_rules(
    rule(f"self.matches('^{HOST_PORT_PATTERN}$')", "not host:port; write such as mc.ops.svc:50051"),
    rule(
        f"!self.matches('^{LOOPBACK_PATTERN}')",
        "other pods cannot reach that host; write a name or an address that they can",
    ),
)
# On the object, whose content the API server does not repeat: there may be a password in an address.
_METADATA_ADDRESS: Final = with_rules(
    rule(
        "!self.address.contains('@')",
        "credentials must not stand here; use a service that needs none inside the cluster",
        fieldPath=".address",
    ),
    rule(
        "self.address.contains('@') || "
        f"self.address.matches('^([a-z]+://)?{HOST_PORT_PATTERN}(,{HOST_PORT_PATTERN})*(/[^ ]*)?$')",
        "not an address; write http://host:8080/metadata, etcd://host:2379 or redis://host:6379",
        fieldPath=".address",
    ),
    rule(
        f"!self.address.matches('^([a-z]+://)?{LOOPBACK_PATTERN}')",
        "other pods cannot reach that host; write a name or an address that they can",
        fieldPath=".address",
    ),
)


class Protocol(StrEnum):
    """How KV bytes travel."""

    TCP = "tcp"
    RDMA = "rdma"
    EFA = "efa"
    ASCEND = "ascend"


class ExternalMaster(ApiModel):
    """A master that somebody else runs."""

    address: Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=_MASTER_ADDRESS)] = Field(
        description="host:port of its RPC; a name that resolves in this namespace, such as mc.ops.svc:50051."
    )


class MasterSpec(ApiModel):
    """The Mooncake master. Unset tuning means the master's own default; no flag is passed for it."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!has(self.external) || !(has(self.defaultKvLeaseTtl) || has(self.evictionHighWatermarkRatio) || "
                "has(self.evictionRatio) || has(self.rpcThreads) || has(self.clientTtl) || has(self.template))",
                "no master is made where external is set; remove external, or all else here but resources",
                fieldPath=".external",
            ),
        )
    )

    external: ExternalMaster | None = Field(None, description="Use this master; none is made. Default: one is made.")
    resources: Resources = Field(Resources(), description="Resources of the master's container.")
    default_kv_lease_ttl: Duration | None = Field(
        None,
        description="How long a read protects an object from eviction, such as 10s. Default: the master's own.",
        json_schema_extra=duration_range("10ms", "24h"),
    )
    eviction_high_watermark_ratio: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Used share of the store at which eviction starts, such as 0.9. Default: the master's own.",
    )
    eviction_ratio: float | None = Field(
        None, gt=0, le=1, description="Share evicted in one round, such as 0.05. Default: the master's own."
    )
    rpc_threads: int | None = Field(
        None, ge=1, le=1024, description="Threads that serve clients. Default: the master's own."
    )
    client_ttl: Duration | None = Field(
        None,
        description="Silence after which a client's segment is dropped, such as 10s. Default: the master's own.",
        json_schema_extra=duration_range("1s", "24h"),
    )
    template: Freeform | None = Field(
        None, description="Partial pod template merged over the generated one. The container is called `master`."
    )


class MetadataType(StrEnum):
    """Where clients find each other's transfer endpoints."""

    HTTP = "HTTP"
    ETCD = "Etcd"
    REDIS = "Redis"
    P2P = "P2PHandshake"


class ExternalMetadata(ApiModel):
    """A metadata service that somebody else runs."""

    model_config = ConfigDict(json_schema_extra=_METADATA_ADDRESS)
    address: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="Its URL: http://host:port/metadata, etcd://host:port or redis://host:port, to fit the type."
    )


class MetadataSpec(ApiModel):
    """The metadata service of the transfer engine."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "self.type != 'Redis' || has(self.external)",
                "a Redis is never made for you; set external.address to redis://host:port",
            ),
            rule(
                "self.type != 'P2PHandshake' || !has(self.external)",
                "P2PHandshake has no service: clients ask each other; remove external",
            ),
            rule(
                "self.type != 'Etcd' || has(self.external) != has(self.image)",
                "with type Etcd set external.address to an etcd that runs, or image to have one made from that image",
            ),
            rule("self.type == 'Etcd' || !has(self.image)", "image goes with type Etcd alone; remove it"),
            rule(
                "self.type != 'HTTP' || !has(self.external) || self.external.address.matches('^https?://') || "
                "!(self.external.address.contains('://') || self.external.address.matches('(?i)^p2phandshake$'))",
                "with type HTTP write http://host:8080/metadata, or set the type that it is",
                fieldPath=".external",
            ),
            rule(
                "self.type != 'Etcd' || !has(self.external) || self.external.address.startsWith('etcd://')",
                "with type Etcd write etcd://host:2379, or set the type that it is",
                fieldPath=".external",
            ),
            rule(
                "self.type != 'Redis' || !has(self.external) || self.external.address.startsWith('redis://')",
                "with type Redis write redis://host:6379, or set the type that it is",
                fieldPath=".external",
            ),
        )
    )
    type: MetadataType = Field(
        MetadataType.P2P,
        description="HTTP: a small service of its own. Etcd or Redis: as named. P2PHandshake (default): none, clients "
        "ask each other, so there is nothing to lose at a restart.",
    )
    external: ExternalMetadata | None = Field(None, description="Use this service; none is made.")
    image: ImageName | None = Field(None, description="Image of a managed etcd; only with type Etcd.")
    resources: Resources = Field(Resources(), description="Resources of the metadata service's container.")


class HostNetwork(StrEnum):
    """Whether engine pods use the node's network."""

    NEVER = "Never"
    REQUIRED = "Required"


class RdmaRights(ApiModel):
    """What RDMA needs beyond Pod Security "restricted". Nothing of it is given unless written here."""

    resource_name: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        None, description="Extended resource of the device plugin, such as rdma/hca; one is requested per pod."
    )
    host_network: HostNetwork = Field(
        HostNetwork.NEVER,
        description="Required: pods use the node's network; their ports are declared, so that the scheduler keeps pods "
        "that would clash on different nodes.",
    )


# Two keys are known here, so that a mode and a segment that contradict each other are refused at once; all others pass.
_CONFIG_SCHEMA: JsonObject = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "mode": {
            "type": "string",
            "enum": ["embedded", "standalone-store"],
            "description": "embedded (default): engines lend segments. standalone-store: they do not, and use a store "
            "that somebody else runs.",
        },
        "global_segment_size": {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "description": "Wins over segmentSize. Better set that.",
        },
    },
}
RawConfig = Annotated[JsonObject, WithJsonSchema(_CONFIG_SCHEMA)]
_IS_STANDALONE: Final = "has(self.config) && has(self.config.mode) && self.config.mode == 'standalone-store'"
_HAS_RAW_SIZE: Final = "has(self.config) && has(self.config.global_segment_size)"
_SEGMENT_IS_ZERO: Final = (
    f"({_HAS_RAW_SIZE} ? {is_zero_size('self.config.global_segment_size')} : {is_zero_size('self.segmentSize')})"
)
_NIC: Final = with_rules(rule("self.matches('^[A-Za-z0-9][-A-Za-z0-9_.:]*$')", "not a NIC; write such as mlx5_0"))

_INTERFACE: Final = with_rules(rule("self.matches('^[a-zA-Z0-9_.-]+$')", "not a network interface; write such as net1"))
_PREFIX: Final = with_rules(rule("self.matches('^[a-zA-Z0-9_.-]*$')", "use letters, digits, '-', '_' and '.'"))


class KVStoreSpec(ApiModel):
    """The store through which prefill's KV reaches decode."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!has(self.rdma) || self.protocol != 'tcp'",
                "rdma grants extra rights that tcp does not need; remove rdma, or set protocol to rdma, efa or ascend",
                fieldPath=".rdma",
            ),
            rule(
                f"!({_IS_STANDALONE}) || {_SEGMENT_IS_ZERO}",
                "with config.mode standalone-store engines lend nothing; set segmentSize to 0",
                fieldPath=".segmentSize",
            ),
            rule(
                f"({_IS_STANDALONE}) || !{_SEGMENT_IS_ZERO}",
                "engines must lend memory, or there is no store: write at least 16Mi (0 goes with config.mode "
                "standalone-store)",
                fieldPath=".segmentSize",
            ),
        )
    )
    protocol: Protocol = Field(Protocol.TCP, description="How KV bytes travel: tcp, rdma, efa or ascend.")
    devices: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64, json_schema_extra=_NIC)]], Field(max_length=32)
    ] = Field(
        default_factory=list,
        description="NICs to use, such as mlx5_0. Default: found by itself. Has no effect with tcp.",
    )
    interface: Annotated[str, Field(min_length=1, max_length=15, json_schema_extra=_INTERFACE)] | None = Field(
        None,
        description="Network interface of the pod whose address KV travels on, such as net1. Default: the pod's IP.",
    )
    segment_size: Size = Field(
        "4Gi",
        description="Memory that each engine rank lends to the store. 4Gi, 4GB (the same here), or bytes.",
        json_schema_extra=size_range("16Mi", "16Ti", or_zero=True),
    )
    local_buffer_size: Size = Field(
        "1Gi", description="Transfer buffer of each engine rank.", json_schema_extra=size_range("1Mi", "1Ti")
    )
    startup_wait: Duration = Field(
        "60s",
        description="How long a starting engine waits for the master. Then it serves without the store.",
        json_schema_extra=duration_range("0s", "1h"),
    )
    master: MasterSpec = Field(MasterSpec(), description="The Mooncake master.")
    metadata: MetadataSpec = Field(MetadataSpec(), description="The metadata service of the transfer engine.")
    rdma: RdmaRights | None = Field(None, description="Extra rights for protocols other than tcp.")
    config: RawConfig | None = Field(
        None,
        description="Raw keys merged over the generated mooncake_config.json. Checked: an unknown key is named "
        "with the nearest known one.",
    )
    namespace_prefix: Annotated[str, Field(max_length=64, json_schema_extra=_PREFIX)] = Field(
        "", description="Put before every key, to keep resources apart that share one external master."
    )
