"""What all API types share: camelCase names, immutability, and the field kinds of Kubernetes that pydantic lacks."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

JsonObject = dict[str, Any]


class ApiModel(BaseModel):
    """Base of every API type.

    Unknown fields are ignored on read: the API server has judged them already, and an older operator must be able to
    read what a newer CRD let in.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


def rule(expression: str, message: str, **extra: str) -> JsonObject:
    """One CEL rule of the CRD. `message` names what is wrong and what would be right."""
    return {"rule": expression, "message": message, **extra}


def with_rules(*rules: JsonObject) -> JsonObject:
    """JSON schema extras that attach CEL rules to a type or a field."""
    return {"x-kubernetes-validations": list(rules)}


SIZE_PATTERN: Final = (
    r"^ *[0-9]+([.][0-9]+)?([eE][0-9]+)? *"
    r"(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|[kKmMgGtT]?[bB]|[kKmMgGtT]i[bB])? *$"
)
_SIZE_RULE = rule(
    f"type(self) == string ? self.matches('{SIZE_PATTERN}') : (type(self) == int && self >= 0)",
    "not a size; write a Kubernetes quantity such as 4Gi, or bytes as an integer",
)
_SIZE_SCHEMA: JsonObject = {"x-kubernetes-int-or-string": True, "maxLength": 32, **with_rules(_SIZE_RULE)}

# Bytes, as a Kubernetes quantity ("4Gi"), as Mooncake and vLLM spell it ("4GB" is 4 GiB), or as an integer.
Size = Annotated[int | str, WithJsonSchema(_SIZE_SCHEMA)]

# An absolute count or a percentage, as in a Deployment.
_INT_OR_PERCENT: JsonObject = {
    "x-kubernetes-int-or-string": True,
    "maxLength": 8,
    **with_rules(
        rule(
            "type(self) == string ? self.matches('^[0-9]+%$') : (type(self) == int && self >= 0)",
            "write a count such as 1 or a percentage such as 25%",
        )
    ),
}
IntOrPercent = Annotated[int | str, WithJsonSchema(_INT_OR_PERCENT)]

# "90s", "5m", "1h30m": the form of Kubernetes' own durations.
Duration = Annotated[str, Field(pattern=r"^([0-9]+(ms|s|m|h))+$", max_length=32)]

# Part of an object whose schema is Kubernetes' own. It is checked before anything is written, not by the CRD: the
# whole PodSpec would push the CRD over the limit of client-side apply.
Freeform = Annotated[JsonObject, WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]

Quantity = Annotated[int | str, WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32})]
ResourceList = Annotated[
    dict[str, int | str],
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": 32,
            "additionalProperties": {"x-kubernetes-int-or-string": True, "maxLength": 32},
        }
    ),
]

Arg = Annotated[str, Field(max_length=1024)]
DnsName = Annotated[str, Field(min_length=1, max_length=253)]
ImageName = Annotated[str, Field(min_length=1, max_length=512)]


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace."""

    name: DnsName = Field(description="Name of the Secret.")
    key: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="Key inside the Secret.")


class LocalObjectReference(ApiModel):
    """Name of an object in the same namespace."""

    name: DnsName = Field(description="Name of the object.")


class EnvVar(ApiModel):
    """One environment variable, as in a container."""

    name: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=8192)] | None = Field(
        None, description="Its value. Secrets belong in `valueFrom`, never here."
    )
    value_from: Freeform | None = Field(
        None,
        description="Where the value comes from: `secretKeyRef`, `configMapKeyRef`, `fieldRef` or `resourceFieldRef`.",
    )


class Resources(ApiModel):
    """Compute resources of a container, as in a pod."""

    requests: ResourceList | None = Field(None, description="What the scheduler sets aside.")
    limits: ResourceList | None = Field(None, description="What the container may use at most.")
    claims: Annotated[list[Freeform], Field(max_length=16)] | None = Field(
        None, description="Names of resource claims of the pod (dynamic resource allocation)."
    )


EnvList = Annotated[
    list[EnvVar],
    Field(max_length=128, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]
