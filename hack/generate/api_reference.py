"""The reference page of the resource and of its scalers: a table for each type of object, in the order of the schema.

A type that stands in several places is told once, where it comes first.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from disagg_operator.api import names
from disagg_operator.api.base import OWNED_ENV
from disagg_operator.api.crd import build_crd, build_scaler_crd
from disagg_operator.api.engine import OWNED_FLAGS, describe_remedy

JsonObject = dict[str, Any]

_HEAD: Final = f"""\
# {names.KIND}

Made by `make generate` from the types in operator/src/disagg_operator/api; do not edit. `kubectl explain
{names.SHORT_NAME}.spec` tells the same. Group `{names.GROUP}`, version `{names.VERSION}`, short name
`{names.SHORT_NAME}`, category `{names.CATEGORY}`.

The resource's own name has at most {names.MAX_NAME_LENGTH} characters of `a-z`, `0-9` and `-`, begins with a letter,
and ends with a letter or digit. A field without a default may be left out, unless it is marked as required. The files
in [examples](../../examples) show most fields at work. What sizes such as `4GB` mean is in
[mooncake-config](../mooncake-config.md).
"""

_SCALER: Final = f"""\
# {names.SCALER_KIND}

The count of one role, where `/scale` finds it: the operator makes one called `<name>-<role>` for each role with
`scaling`. Same group and version, short name `{names.SCALER_SHORT_NAME}`. How it is used is in
[scaling](../scaling.md).
"""


@dataclass
class _Type:
    """One kind of object, and the places where it stands."""

    node: JsonObject
    paths: list[str] = field(default_factory=list)


def outputs(root: Path) -> dict[Path, str]:
    """docs/reference/api.md."""
    return {root / "docs" / "reference" / "api.md": build_page(build_crd(), build_scaler_crd())}


def build_page(crd: JsonObject, scaler: JsonObject) -> str:
    """The page of the two CRDs."""
    return "\n".join([_HEAD, *_sections(crd, ""), _SCALER, *_sections(scaler, "scaler."), _owned()])


def _sections(crd: JsonObject, prefix: str) -> Iterator[str]:
    """A section for each type of a CRD, its path after a prefix."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    types: dict[str, _Type] = {}
    for part in ("spec", "status"):
        for path, node in _objects(f"{prefix}{part}", schema[part]):
            types.setdefault(_identity(node), _Type(node)).paths.append(path)
    yield from (_section(found, types) for found in types.values())


def _owned() -> str:
    """Flags and variables that are the operator's."""
    flags = [f"| `{flag}` | {_escape(describe_remedy(flag))} |" for flag in OWNED_FLAGS]
    variables = [f"| `{name}` | {_escape(remedy)} |" for name, remedy in OWNED_ENV.items()]
    return "\n".join(
        [
            "## Flags and variables that the operator sets",
            "",
            "| in `args` | instead |",
            "|---|---|",
            *flags,
            "",
            "| in `env` | instead |",
            "|---|---|",
            *variables,
            "",
        ]
    )


def _identity(node: JsonObject) -> str:
    """The same for objects with the same fields and rules, whatever they are for."""
    return json.dumps([node["properties"], node.get("required"), node.get("x-kubernetes-validations")], sort_keys=True)


def _objects(path: str, node: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Every object with fields, parents before children."""
    if "properties" in node:
        yield path, node
        for name, child in node["properties"].items():
            yield from _objects(f"{path}.{name}", child)
    if "items" in node:
        yield from _objects(f"{path}[]", node["items"])


def _section(found: _Type, types: dict[str, _Type]) -> str:
    node = found.node
    lines = [f"## {found.paths[0]}", ""]
    if len(found.paths) > 1:
        lines += ["The same for " + ", ".join(f"`{path}`" for path in found.paths[1:]) + ".", ""]
    elif node.get("description"):
        lines += [_escape(node["description"]), ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    required = node.get("required", [])
    for name, child in node["properties"].items():
        default = "required" if name in required else _default(child)
        meaning = _escape(child.get("description", ""))
        lines.append(f"| `{name}` | {_type(child, types)} | {default} | {meaning} |")
    rules = list(_rules(node))
    if rules:
        lines += ["", "What the API server says to values that do not fit:", "", *(f"- {rule}" for rule in rules)]
    return "\n".join([*lines, ""])


def _rules(node: JsonObject) -> Iterator[str]:
    """What is refused in this object and in its simple fields, by the field that it is about."""
    for rule in node.get("x-kubernetes-validations", []):
        path = rule.get("fieldPath", "").lstrip(".")
        yield (f"`{path}`: " if path else "") + _escape(rule["message"])
    for name, child in node["properties"].items():
        inner = child.get("items", child.get("additionalProperties", {}))
        for owner in (child, inner):
            if "properties" not in owner:
                yield from (
                    f"`{name}`: {_escape(rule['message'])}" for rule in owner.get("x-kubernetes-validations", [])
                )


def _default(child: JsonObject) -> str:
    """The default of a simple field. Those of an object are in its own table."""
    default = child.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{json.dumps(default) if default == '' else default}`"


def _type(child: JsonObject, types: dict[str, _Type]) -> str:
    if "properties" in child:
        path = types[_identity(child)].paths[0]
        return f"[object](#{re.sub(r'[^a-z0-9-]', '', path.lower())})"
    if "enum" in child:
        return " or ".join(f"`{value}`" for value in child["enum"])
    if child.get("type") == "array":
        return f"list of {_type(child['items'], types)}, at most {child['maxItems']}"
    if "additionalProperties" in child:
        return f"map of {_type(child['additionalProperties'], types)}"
    if child.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if child.get("x-kubernetes-preserve-unknown-fields"):
        return "any object"
    return str(child["type"]) + _range(child)


def _range(child: JsonObject) -> str:
    if "minimum" in child and "maximum" in child:
        return f", {'above ' if child.get('exclusiveMinimum') else ''}{child['minimum']} to {child['maximum']}"
    return ""


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
