"""The CustomResourceDefinitions, built from the models."""

from typing import Any, Final

from disagg_operator.api import names
from disagg_operator.api.resource import Spec, Status
from disagg_operator.api.rules import JsonObject, rule
from disagg_operator.api.scaler import ScalerSpec, ScalerStatus
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
# What a resource reads as before the operator has seen it. Without it kstatus, and Flux with it, would take a new
# resource for a finished one: an object that has no status has nothing to wait for.
_UNSEEN: Final = {"observedGeneration": -1}
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
            **_outside(names.KIND),
            "spec": structural_schema(Spec),
            "status": {**without_defaults(structural_schema(Status)), "default": _UNSEEN},
        },
    }
    version = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": schema},
    }
    return _definition(names.KIND, names.PLURAL, names.SINGULAR, names.SHORT_NAME, version)


def build_scaler_crd() -> dict[str, Any]:
    """The CRD of DisaggregatedInferenceScaler: a version has one `/scale`, so each role has an object of its own."""
    schema = {
        "type": "object",
        "description": "The count of one role of a DisaggregatedInference: what kubectl scale, HPA and KEDA work on.",
        "required": ["spec"],
        "properties": {
            **_outside(names.SCALER_KIND),
            "spec": structural_schema(ScalerSpec),
            "status": without_defaults(structural_schema(ScalerStatus)),
        },
    }
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "subresources": {"status": {}, "scale": scale},
        "additionalPrinterColumns": _scaler_columns(),
        "schema": {"openAPIV3Schema": schema},
    }
    kind = (names.SCALER_KIND, names.SCALER_PLURAL, names.SCALER_SINGULAR, names.SCALER_SHORT_NAME)
    return _definition(*kind, version)


def _scaler_columns() -> list[JsonObject]:
    return [
        {"name": "Resource", "type": "string", "jsonPath": ".spec.resource", "description": "Whose role it is."},
        {"name": "Role", "type": "string", "jsonPath": ".spec.role", "description": "The role that is scaled."},
        {"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas", "description": "Wished replicas."},
        {"name": "Current", "type": "integer", "jsonPath": ".status.replicas", "description": "Replicas that exist."},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def _outside(kind: str) -> JsonObject:
    """Fields that every object has."""
    return {
        "apiVersion": {"type": "string", "description": "Version of this schema."},
        "kind": {"type": "string", "description": f"Always {kind}."},
        "metadata": _METADATA,
    }


def _definition(kind: str, plural: str, singular: str, short_name: str, version: JsonObject) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": singular,
                "shortNames": [short_name],
                "categories": [names.CATEGORY],
            },
            "versions": [{"name": names.VERSION, "served": True, "storage": True, **version}],
        },
    }
