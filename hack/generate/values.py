"""Reads a chart's values.yaml with its comments: the one source of its JSON schema and of its README's table.

The form is small on purpose. The comment lines right above a key are its description; a line `# @schema {...}` among
them gives the JSON schema of the value where its default does not tell enough. A mapping without one is a group: its
keys are described one by one, and no others are allowed.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

JsonObject = dict[str, Any]

_KEY: Final = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9_.-]*):(?P<rest>.*)$")
_TYPES: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}
# What helm itself hands to a chart that is a part of another one.
_FROM_PARENT: Final[JsonObject] = {
    "global": {"type": "object", "description": "Values that a parent chart shares with its parts."},
    "enabled": {"type": "boolean", "description": "Condition by which a parent chart takes this one in."},
}


class ValuesError(ValueError):
    """The values file does not follow the form: where, and what would be right."""


@dataclass(frozen=True)
class Value:
    """One key: its path, its default, its description, and its schema where one is written."""

    path: tuple[str, ...]
    default: object
    description: str
    schema: JsonObject | None

    @property
    def is_group(self) -> bool:
        """True for a mapping whose keys are described one by one."""
        return isinstance(self.default, dict) and self.schema is None

    @property
    def name(self) -> str:
        """The path as it is written after `--set`."""
        return ".".join(self.path)


def read_values(text: str) -> tuple[Value, ...]:
    """Every key of a values file, in its order. Raises ValuesError."""
    return tuple(_walk(text.splitlines(), yaml.safe_load(text)))


def _walk(lines: Sequence[str], defaults: JsonObject) -> Iterator[Value]:
    comments: list[str] = []
    path: list[str] = []
    opaque: int | None = None  # indentation of a value with a schema of its own: what is inside belongs to it
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            comments.append(stripped[1:].strip())
            continue
        match = _KEY.match(line)
        if match is None:
            comments = []
            continue
        indent = len(match["indent"])
        if opaque is not None and indent > opaque:
            continue
        opaque = None
        path = [*path[: indent // 2], match["key"]]
        value = _read(tuple(path), comments, defaults, number)
        comments = []
        if not value.is_group:
            opaque = indent
        yield value


def _read(path: tuple[str, ...], comments: Sequence[str], defaults: JsonObject, number: int) -> Value:
    default: Any = defaults
    for key in path:
        default = default[key]
    schema: JsonObject | None = None
    words = []
    for comment in comments:
        if comment.startswith("@schema "):
            schema = yaml.safe_load(comment.removeprefix("@schema "))
        elif comment:
            words.append(comment)
    value = Value(path, default, " ".join(words), schema)
    if not value.description:
        raise ValuesError(f"values.yaml:{number}: {value.name} has no comment above it; say what it is")
    if schema is None and (default is None or isinstance(default, list) or default == {}):
        raise ValuesError(f"values.yaml:{number}: the default of {value.name} does not tell its type; add `# @schema`")
    return value


def build_schema(values: Sequence[Value], title: str) -> JsonObject:
    """JSON schema (draft 7) of a values file. Unknown keys are refused everywhere but inside written schemas."""
    root: JsonObject = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": title,
        "type": "object",
        "additionalProperties": False,
        "properties": dict(_FROM_PARENT),
    }
    for value in values:
        parent = root
        for key in value.path[:-1]:
            parent = parent["properties"][key]
        parent["properties"][value.path[-1]] = _schema_of(value)
    return root


def _schema_of(value: Value) -> JsonObject:
    if value.is_group:
        return {
            "type": "object",
            "description": value.description,
            "additionalProperties": False,
            "properties": {},
        }
    schema = value.schema or {"type": _TYPES[type(value.default)]}
    return {**schema, "description": value.description, "default": value.default}


def build_table(values: Sequence[Value]) -> str:
    """Markdown table of all values; a group's row comes before those of its keys and has no default."""
    rows = ["| Value | Default | What it is |", "| --- | --- | --- |"]
    for value in values:
        default = "" if value.is_group else f"`{json.dumps(value.default, ensure_ascii=False)}`"
        rows.append(f"| `{value.name}` | {default} | {value.description.replace('|', '&#124;')} |")
    return "\n".join(rows) + "\n"
