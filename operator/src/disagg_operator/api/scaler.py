"""DisaggregatedInferenceScaler: the count of one role, where `/scale` finds it. docs/adr/0008-scalers.md."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from disagg_operator.api.base import ApiModel, ReferredName
from disagg_operator.api.resource import Generation
from disagg_operator.api.rules import rule, with_rules


class ScaledRole(StrEnum):
    """The roles that can be scaled."""

    PREFILL = "prefill"
    DECODE = "decode"


_FIXED = with_rules(rule("self == oldSelf", "the operator wrote it, and it must not change; use the other scaler"))


class ScalerSpec(ApiModel):
    """How many replicas one role is to have. Made by the operator; only the count is for others to write."""

    replicas: int = Field(ge=0, le=10000, description="Wished replicas: what `kubectl scale` and autoscalers write.")
    role: Annotated[ScaledRole, Field(json_schema_extra=_FIXED)] = Field(description="The role that is scaled.")
    resource: Annotated[ReferredName, Field(json_schema_extra=_FIXED)] = Field(
        description="The DisaggregatedInference that the role is part of, in the same namespace."
    )


class ScalerStatus(ApiModel):
    """What is there of the role."""

    observed_generation: Generation | None = Field(None, description="Generation of the count that was last read.")
    replicas: int = Field(0, description="Replicas that exist now, of any revision.")
    selector: Annotated[str, Field(max_length=1024)] = Field(
        "", description="Label selector of the role's pods, the same in every revision."
    )
