"""From pydantic models to the structural schema of Kubernetes: no references, no titles, no unions with null."""

from typing import Any

from pydantic import BaseModel

from disagg_operator.api.rules import JsonObject

# What pydantic writes and Kubernetes' schemas do not have.
_DROPPED = ("title", "$defs", "discriminator", "const")
_EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def structural_schema(model: type[BaseModel]) -> JsonObject:
    """The OpenAPI v3 schema of a model, as a CustomResourceDefinition takes it."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(schema, schema.get("$defs", {}))


def without_defaults(schema: JsonObject) -> JsonObject:
    """The same schema without any default.

    For status: what its writer leaves out must stay out, or the written and the read status would never be equal.
    """
    out = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in out:
        out["properties"] = {name: without_defaults(child) for name, child in out["properties"].items()}
    if "items" in out:
        out["items"] = without_defaults(out["items"])
    return out


def _convert(node: JsonObject, definitions: JsonObject) -> JsonObject:
    node = _inline(node, definitions)
    out: JsonObject = {}
    for key, value in node.items():
        if key in _DROPPED or (isinstance(value, bool) and key == "additionalProperties"):
            continue
        if key == "additionalProperties":
            out[key] = _convert(value, definitions)
        elif key == "properties":
            out[key] = {name: _convert(child, definitions) for name, child in value.items()}
        elif key == "items":
            out[key] = _convert(value, definitions)
        elif key in _EXCLUSIVE:
            # OpenAPI v3.0 has the bound and a switch beside it.
            out[_EXCLUSIVE[key]] = value
            out[key] = True
        else:
            out[key] = value
    return _finish(out)


def _inline(node: JsonObject, definitions: JsonObject) -> JsonObject:
    """Replace a reference, or `something or null`, by the thing itself; the field's own words win."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _inline({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    for union in ("anyOf", "allOf"):
        if union in node:
            options = [option for option in node[union] if option.get("type") != "null"]
            if len(options) != 1:
                raise TypeError(f"a union of {len(options)} types has no structural schema: {node}")
            rest = {key: value for key, value in node.items() if key != union}
            chosen = _inline(options[0], definitions)
            return {**chosen, **rest}
    return node


def _finish(schema: JsonObject) -> JsonObject:
    """Integer widths, list kinds, and defaults that mean something."""
    if schema.get("type") == "integer":
        schema.setdefault("format", "int32" if _fits_int32(schema) else "int64")
    if schema.get("type") == "array":
        schema.setdefault("x-kubernetes-list-type", "atomic")
    if schema.get("type") == "object" and "properties" not in schema and "additionalProperties" not in schema:
        schema.setdefault("x-kubernetes-preserve-unknown-fields", True)
    if "default" in schema:
        # Whole, not `{}`: the API server holds rules against a default before it fills in nested ones.
        default = _said(schema.pop("default"))
        if default is not None and default != []:
            schema["default"] = default
    if "description" in schema:
        schema["description"] = " ".join(str(schema["description"]).split())
    return schema


def _said(value: Any) -> Any:
    """A default as plain data, without what says nothing (null, and empty lists and objects inside it)."""
    if isinstance(value, BaseModel):
        value = value.model_dump(by_alias=True, mode="json")
    if isinstance(value, dict):
        said = {key: _said(child) for key, child in value.items()}
        return {key: child for key, child in said.items() if child is not None and child not in ([], {})}
    return value


def _fits_int32(schema: JsonObject) -> bool:
    return bool(schema.get("maximum", 2**31 - 1) <= 2**31 - 1)
