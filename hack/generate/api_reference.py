"""The reference page of the resource: a table for each object, in the order of the schema."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disagg_operator.api import names
from disagg_operator.api.crd import build_crd

_HEAD = f"""\
# {names.KIND}

Made by `make generate` from the CRD; do not edit. `kubectl explain {names.SHORT_NAME}.spec` tells the same.
Group `{names.GROUP}`, version `{names.VERSION}`, short name `{names.SHORT_NAME}`, category `{names.CATEGORY}`.
"""


def outputs(root: Path) -> dict[Path, str]:
    """docs/reference/api.md."""
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts = [_HEAD]
    for name in ("spec", "status"):
        parts += [_section(path, node) for path, node in _objects(name, schema[name])]
    return {root / "docs" / "reference" / "api.md": "\n".join(parts)}


def _objects(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object with fields, parents before children."""
    if "properties" in node:
        yield path, node
        for name, child in node["properties"].items():
            yield from _objects(f"{path}.{name}", child)
    if "items" in node:
        yield from _objects(f"{path}[]", node["items"])


def _section(path: str, node: dict[str, Any]) -> str:
    required = node.get("required", [])
    rows = [
        f"## {path}\n",
        f"{node.get('description', '')}\n",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, child in node["properties"].items():
        default = "required" if name in required else _default(child)
        rows.append(f"| `{name}` | {_type(child)} | {default} | {_escape(child.get('description', ''))} |")
    rules = [_escape(rule["message"]) for rule in node.get("x-kubernetes-validations", [])]
    if rules:
        rows += ["", "Refused at admission: " + "; ".join(rules) + "."]
    return "\n".join([*rows, ""])


def _default(child: dict[str, Any]) -> str:
    default = child.get("default")
    return "" if default is None or default == {} else f"`{str(default).lower() if default is True else default}`"


def _type(child: dict[str, Any]) -> str:
    if child.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if child.get("enum"):
        return ", ".join(f"`{value}`" for value in child["enum"])
    if child.get("type") == "array":
        return f"list of {_type(child['items'])}"
    if "additionalProperties" in child:
        return "map"
    return str(child.get("type", "any"))


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
