"""The CustomResourceDefinition, built from the models."""

from typing import Any

from disagg_operator.api import names
from disagg_operator.api.base import JsonObject, rule
from disagg_operator.api.resource import Spec, Status
from disagg_operator.api.schema import structural_schema

_NAME_RULES = [
    # No computed suggestion here: the API server sees no bound for the cost of cutting a name.
    rule(
        f"self.metadata.name.size() <= {names.MAX_NAME_LENGTH}",
        f"metadata.name may have at most {names.MAX_NAME_LENGTH} characters since children are named after it; shorten "
        "it, such as by leaving out the organisation",
    ),
    rule(
        f"self.metadata.name.matches('{names.NAME_PATTERN}')",
        "metadata.name must begin with a letter and have only a-z, 0-9 and -",
        messageExpression=(
            "'metadata.name \"' + self.metadata.name + '\" must begin with a letter and have only a-z, 0-9 and -; "
            "try \"' + (self.metadata.name.matches('^[a-z].*') ? '' : 'm-') + "
            "self.metadata.name.replace('.', '-') + '\"'"
        ),
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
    status = structural_schema(Status)
    status.pop("default", None)
    schema = {
        "type": "object",
        "description": "One served model, split into prefill and decode pods that share KV through a Mooncake store.",
        "required": ["spec"],
        "x-kubernetes-validations": _NAME_RULES,
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": f"Always {names.KIND}."},
            # The bound is Kubernetes' own; said here, the rules on the name fit into the cost budget.
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": structural_schema(Spec),
            "status": status,
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
