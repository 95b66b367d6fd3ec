"""The CustomResourceDefinition, built from the models."""

from typing import Any, Final

from disagg_operator.api import names
from disagg_operator.api.resource import Spec, Status
from disagg_operator.api.rules import JsonObject, rule
from disagg_operator.api.schema import structural_schema, without_defaults

# Declared in full, so that the bounds (which are Kubernetes' own) are known where the cost of rules is estimated.
_METADATA: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 253},
        "generateName": {"type": "string", "maxLength": 253},
    },
}
_NAME: Final = "self.metadata.name"
# Dots and a first digit are what people have in names of models: qwen2.5-7b, 01-yi.
_SUGGESTION: Final = f"(({_NAME}.matches('^[a-z]') ? '' : 'm-') + {_NAME}.replace('.', '-'))"
# No name of this length ends in the dash that cutting may leave.
_CUT: Final = (
    f"({_NAME}.matches('^.{{{names.MAX_NAME_LENGTH - 1}}}[-.]') ? {_NAME}.substring(0, {names.MAX_NAME_LENGTH - 1}) : "
    f"{_NAME}.substring(0, {names.MAX_NAME_LENGTH})).replace('.', '-')"
)
_NAME_RULES = [
    rule(
        f"{_NAME}.size() <= {names.MAX_NAME_LENGTH}",
        f"a name may have at most {names.MAX_NAME_LENGTH} characters: children are named after it; use a shorter one",
        messageExpression=(
            f"'metadata.name may have at most {names.MAX_NAME_LENGTH} characters: children are named after it; try '"
            f" + {_CUT}"
        ),
        fieldPath=".metadata.name",
    ),
    rule(
        f"{_NAME}.matches('{names.NAME_PATTERN}')",
        "a name must begin with a letter and have only a-z, 0-9 and -, at least two characters",
        messageExpression=(
            "'metadata.name must begin with a letter and have only a-z, 0-9 and -, at least two characters; try ' + "
            f"({_SUGGESTION}.size() > 1 ? {_SUGGESTION} : {_SUGGESTION} + '-model')"
        ),
        fieldPath=".metadata.name",
    ),
]


def _columns() -> list[JsonObject]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    return [
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status", "description": "Whether all is as wished."},
        {"name": "Prefill", "type": "string", "jsonPath": ".status.prefill.ready", "description": "Ready of wished."},
        {"name": "Decode", "type": "string", "jsonPath": ".status.decode.ready", "description": "Ready of wished."},
        {"name": "Model", "type": "string", "jsonPath": ".status.model", "description": "Name that clients ask for."},
        {"name": "Reason", "type": "string", "jsonPath": f"{ready}.reason", "description": "Why Ready is as it is."},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def build_crd() -> dict[str, Any]:
    """The CRD of DisaggregatedInference, complete and deterministic."""
    schema = {
        "type": "object",
        "description": "One served model, split into prefill and decode pods that share KV through a Mooncake store.",
        "required": ["spec"],
        "x-kubernetes-validations": _NAME_RULES,
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": f"Always {names.KIND}."},
            "metadata": _METADATA,
            "spec": structural_schema(Spec),
            "status": without_defaults(structural_schema(Status)),
        },
    }
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [version],
        },
    }
