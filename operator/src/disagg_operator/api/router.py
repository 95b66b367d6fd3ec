"""The router: the one address that clients use."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

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
from disagg_operator.api.rules import ANNOTATION_KEYS, with_rules


class ServiceType(StrEnum):
    """How the router's Service is reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class RouterService(ApiModel):
    """The Service in front of the router."""

    type: ServiceType = Field(ServiceType.CLUSTER_IP, description="ClusterIP, NodePort or LoadBalancer.")
    port: int = Field(8000, ge=1, le=65535, description="Port of the Service.")
    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]],
        Field(max_length=64, json_schema_extra=with_rules(ANNOTATION_KEYS)),
    ] = Field(default_factory=dict, description="Annotations of the Service, for cloud load balancers.")


class RouterSpec(ApiModel):
    """The router. Prompts go through prefill, then decode; without prefill, through decode alone."""

    replicas: int = Field(1, ge=0, le=1000, description="Router pods.")
    image: ImageName | None = Field(None, description="Router image. Default: the operator's, recorded at first sight.")
    service: RouterService = Field(RouterService(), description="The Service in front of the router.")
    resources: Resources = Field(Resources(), description="Resources of each of the router's containers.")
    prefill_timeout: Duration = Field(
        "30s",
        description="How long a prompt may take in prefill before decode computes it itself.",
        json_schema_extra=duration_range("100ms", "1h"),
    )
    max_body_size: Size = Field(
        "32Mi",
        description="Largest request body; larger ones are answered 413.",
        json_schema_extra=size_range("1Mi", "1Gi"),
    )
    template: Freeform | None = Field(
        None, description="Partial pod template merged over the generated one. The main container is called `router`."
    )
