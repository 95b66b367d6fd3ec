"""The Mooncake store: what engines lend to it, its master, and its metadata service."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from disagg_operator.api.base import (
    ApiModel,
    Duration,
    Freeform,
    ImageName,
    Resources,
    Size,
    rule,
    with_rules,
)

Address = Annotated[str, Field(min_length=1, max_length=512)]


class Protocol(StrEnum):
    """How KV bytes travel."""

    TCP = "tcp"
    RDMA = "rdma"
    EFA = "efa"
    ASCEND = "ascend"


class ExternalMaster(ApiModel):
    """A master that somebody else runs."""

    address: Address = Field(
        description="host:port of its RPC; a name that resolves in this namespace, such as mc.ops.svc:50051."
    )


class MasterSpec(ApiModel):
    """The Mooncake master. Unset tuning means the master's own default; no flag is passed for it."""

    external: ExternalMaster | None = Field(None, description="Use this master; none is made. Default: one is made.")
    resources: Resources = Field(Resources(), description="Resources of the master's container.")
    default_kv_lease_ttl: Duration | None = Field(
        None, description="How long a read protects an object from eviction, such as 10s. Default: the master's own."
    )
    eviction_high_watermark_ratio: float | None = Field(
        None, gt=0, le=1, description="Used share of the store at which eviction starts, such as 0.9."
    )
    eviction_ratio: float | None = Field(None, gt=0, le=1, description="Share evicted in one round, such as 0.05.")
    rpc_threads: int | None = Field(None, ge=1, le=1024, description="Threads that serve clients.")
    client_ttl: Duration | None = Field(
        None, description="Silence after which a client's segment is dropped, such as 10s."
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

    address: Address = Field(
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
                "self.type != 'Etcd' || has(self.external) || has(self.image)",
                "set external.address to an etcd that runs, or image to have one made from that etcd image",
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


class KVStoreSpec(ApiModel):
    """The store through which prefill's KV reaches decode."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!has(self.rdma) || self.protocol != 'tcp'",
                "rdma grants extra rights that tcp does not need; remove rdma or set protocol",
            ),
        )
    )
    protocol: Protocol = Field(Protocol.TCP, description="How KV bytes travel: tcp, rdma, efa or ascend.")
    devices: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=32)] = Field(
        default_factory=list,
        description="NICs to use, such as mlx5_0. Default: found by itself. Has no effect with tcp.",
    )
    interface: Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[a-zA-Z0-9_.-]+$")] | None = Field(
        None,
        description="Network interface of the pod whose address KV travels on, such as net1. Default: the pod's IP.",
    )
    segment_size: Size = Field("4Gi", description="Memory that each engine rank lends to the store.")
    local_buffer_size: Size = Field("1Gi", description="Transfer buffer of each engine rank.")
    startup_wait: Duration = Field(
        "60s", description="How long a starting engine waits for the master. Then it serves without the store."
    )
    master: MasterSpec = Field(MasterSpec(), description="The Mooncake master.")
    metadata: MetadataSpec = Field(MetadataSpec(), description="The metadata service of the transfer engine.")
    rdma: RdmaRights | None = Field(None, description="Extra rights for protocols other than tcp.")
    config: Freeform | None = Field(
        None,
        description="Raw keys merged over the generated mooncake_config.json. Checked: an unknown key is named "
        "with the nearest known one.",
    )
    namespace_prefix: Annotated[str, Field(max_length=64, pattern=r"^[a-zA-Z0-9_.-]*$")] = Field(
        "", description="Put before every key, to keep resources apart that share one external master."
    )
