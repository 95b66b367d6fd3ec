"""What all API types share: camelCase names, immutability, and the field kinds of Kubernetes that pydantic lacks."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from disagg_operator.api.rules import (
    IMAGE_FORM,
    OBJECT_NAME,
    QUANTITY_FORM,
    REFERENCE_KEY,
    REFERENCE_NAME,
    RESOURCE_NAMES,
    SIZE_FORM,
    JsonObject,
    duration_between,
    rule,
    size_between,
    text_map,
    with_rules,
)


class ApiModel(BaseModel):
    """Base of every API type.

    Unknown fields are ignored on read: the API server has judged them already, and an older operator must be able to
    read what a newer CRD let in.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


# Bytes, as a Kubernetes quantity ("4Gi"), as Mooncake and vLLM spell it ("4GB" is 4 GiB), or as an integer.
_SIZE_SCHEMA: JsonObject = {"x-kubernetes-int-or-string": True, "maxLength": 32}
Size = Annotated[int | str, WithJsonSchema(_SIZE_SCHEMA)]


def size_range(minimum: str, maximum: str, *, or_zero: bool = False) -> JsonObject:
    """Rules of a field of type Size."""
    return with_rules(SIZE_FORM, size_between(minimum, maximum, or_zero=or_zero))


# An absolute count or a percentage, as in a Deployment.
_INT_OR_PERCENT: JsonObject = {
    "x-kubernetes-int-or-string": True,
    "maxLength": 5,
    **with_rules(
        rule(
            "type(self) == string ? self.matches('^(0|[1-9][0-9]{0,3})%$') : (self >= 0 && self <= 10000)",
            "write a count such as 1 or a percentage such as 25%",
        )
    ),
}
IntOrPercent = Annotated[int | str, WithJsonSchema(_INT_OR_PERCENT)]

# "90s", "5m", "1h30m": the form of Kubernetes' own durations.
Duration = Annotated[str, Field(max_length=32)]


def duration_range(minimum: str, maximum: str) -> JsonObject:
    """Rules of a field of type Duration."""
    return with_rules(*duration_between(minimum, maximum))


# Part of an object whose schema is Kubernetes' own. It is checked before anything is written, not by the CRD: the
# whole PodSpec would push the CRD over the limit of client-side apply.
Freeform = Annotated[JsonObject, WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]

_QUANTITY: JsonObject = {"x-kubernetes-int-or-string": True, "maxLength": 32, **with_rules(QUANTITY_FORM)}
Quantity = Annotated[int | str, WithJsonSchema(_QUANTITY)]
ResourceList = Annotated[
    dict[str, int | str],
    WithJsonSchema(
        {"type": "object", "maxProperties": 32, "additionalProperties": _QUANTITY, **with_rules(RESOURCE_NAMES)}
    ),
]

Arg = Annotated[str, Field(max_length=1024)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, json_schema_extra=with_rules(OBJECT_NAME))]
ReferredName = Annotated[str, Field(min_length=1, max_length=253)]
ImageName = Annotated[str, Field(min_length=1, max_length=512, json_schema_extra=with_rules(IMAGE_FORM))]

# A reference is one thing: two field managers must not own halves of it.
_ATOMIC: Final[JsonObject] = {"x-kubernetes-map-type": "atomic"}


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace."""

    model_config = ConfigDict(json_schema_extra={**_ATOMIC, **with_rules(REFERENCE_NAME, REFERENCE_KEY)})
    name: ReferredName = Field(description="Name of the Secret.")
    key: ReferredName = Field(description="Key inside the Secret.")


class LocalObjectReference(ApiModel):
    """Name of an object in the same namespace."""

    model_config = ConfigDict(json_schema_extra={**_ATOMIC, **with_rules(REFERENCE_NAME)})
    name: ReferredName = Field(description="Name of the object.")


def _text(description: str, limit: int = 253) -> JsonObject:
    return {"type": "string", "maxLength": limit, "description": description}


def _source(description: str, *required: str, **properties: JsonObject) -> JsonObject:
    schema: JsonObject = {"type": "object", "description": description, "required": [*required]}
    return {**schema, **_ATOMIC, "properties": properties}


_OPTIONAL: JsonObject = {"type": "boolean", "description": "Whether the pod may start without it."}
_VALUE_FROM: JsonObject = {
    "type": "object",
    "properties": {
        "secretKeyRef": _source(
            "A key of a Secret.",
            "name",
            "key",
            name=_text("Name of the Secret."),
            key=_text("Key inside the Secret."),
            optional=_OPTIONAL,
        ),
        "configMapKeyRef": _source(
            "A key of a ConfigMap.",
            "name",
            "key",
            name=_text("Name of the ConfigMap."),
            key=_text("Key inside the ConfigMap."),
            optional=_OPTIONAL,
        ),
        "fieldRef": _source(
            "A field of the pod.",
            "fieldPath",
            apiVersion=_text("Version of the schema that the path is written in. Default: v1.", 32),
            fieldPath=_text("The field, such as metadata.name.", 512),
        ),
        "resourceFieldRef": _source(
            "A resource of a container.",
            "resource",
            containerName=_text("The container. Default: this one.", 63),
            resource=_text("The resource, such as limits.memory."),
            divisor={**_QUANTITY, "description": "What the amount is divided by, such as 1Mi. Default: 1."},
        ),
        "fileKeyRef": _source(
            "A key of a file that another container of the pod wrote.",
            "volumeName",
            "path",
            "key",
            volumeName=_text("The volume that holds the file.", 63),
            path=_text("Path of the file inside the volume.", 512),
            key=_text("Key inside the file."),
            optional=_OPTIONAL,
        ),
    },
    **with_rules(
        rule(
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef), has(self.resourceFieldRef), "
            "has(self.fileKeyRef)].filter(given, given).size() == 1",
            "write exactly one of secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef and fileKeyRef",
        )
    ),
}
ValueFrom = Annotated[JsonObject, WithJsonSchema(_VALUE_FROM)]

# Variables whose value the operator derives, with what to do instead.
OWNED_ENV: Final = {
    "POD_IP": "remove it: it is the pod's own address",
    "VLLM_HOST_IP": "remove it: it is the pod's own address",
    "MOONCAKE_CONFIG_PATH": "remove it, and write keys of that file into spec.kvStore.config",
    "PYTHONHASHSEED": "remove it: block hashes must be the same in all engines, so every one has 0",
    "VLLM_API_KEY": "set spec.apiKeySecretRef: the router asks clients for keys, engines ask nobody",
}
_TELLING_NAME: Final = "(?i)(TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_KEY|CREDENTIALS?)$"
_PLAIN_VALUE: Final = "(?i)^([0-9]{0,5}|true|false)$"
_ENV_RULES: Final = with_rules(
    rule(
        f"!(self.name in {text_map(OWNED_ENV)}) || (self.name == 'PYTHONHASHSEED' && has(self.value) && "
        "self.value == '0')",
        "a variable that the operator sets; remove it",
        messageExpression=f"'the operator sets ' + self.name + '; ' + {text_map(OWNED_ENV)}[self.name]",
        fieldPath=".name",
    ),
    rule("!(has(self.value) && has(self.valueFrom))", "write value or valueFrom, not both"),
    rule(
        "!has(self.value) || !(self.value.matches('hf_[A-Za-z0-9]{30,}') || "
        f"(self.name.matches('{_TELLING_NAME}') && !self.value.matches('{_PLAIN_VALUE}')))",
        "a secret in plain text; put it into a Secret and write valueFrom.secretKeyRef (for the model hub: "
        "spec.model.tokenSecretRef)",
        fieldPath=".value",
    ),
)


class EnvVar(ApiModel):
    """One environment variable, as in a container."""

    model_config = ConfigDict(json_schema_extra=_ENV_RULES)
    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            json_schema_extra=with_rules(
                rule("!self.contains('=')", "a name cannot hold '='; write the value into value")
            ),
        ),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=8192)] | None = Field(
        None, description="Its value. Secrets belong in `valueFrom`, never here."
    )
    value_from: ValueFrom | None = Field(
        None,
        description="Where the value comes from: `secretKeyRef`, `configMapKeyRef`, `fieldRef`, `resourceFieldRef` or "
        "`fileKeyRef`.",
    )


_CLAIM: JsonObject = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _text("Name of a claim in the pod's `resourceClaims`."),
        "request": _text("One request of that claim. Default: all of it."),
    },
}


class Resources(ApiModel):
    """Compute resources of a container, as in a pod."""

    requests: ResourceList | None = Field(None, description="What the scheduler sets aside.")
    limits: ResourceList | None = Field(None, description="What the container may use at most.")
    claims: (
        Annotated[
            list[Annotated[JsonObject, WithJsonSchema(_CLAIM)]],
            Field(
                max_length=16,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            ),
        ]
        | None
    ) = Field(None, description="Names of resource claims of the pod (dynamic resource allocation).")


EnvList = Annotated[
    list[EnvVar],
    Field(max_length=128, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]
