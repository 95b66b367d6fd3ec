"""The reference page of the V0 connector, from its docstrings: read as text, since importing it needs torch."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PACKAGE: Final = "mooncake_store_connector.v0"
_FOLDER: Final = Path("connector/src/mooncake_store_connector/v0")
_SOURCES: Final = Path(__file__).parents[2] / _FOLDER
# In the order of the page, with the module that each is in.
_SECTIONS: Final = {
    "MooncakeStoreConnector": "connector",
    "install": "plugin",
    "Settings": "settings",
    "MooncakeStore": "store",
    "Count": "counts",
    "ModelAwareKVHelper": "kv_helper",
    "IntermediateTensors": "intermediate",
    "KVConnectorBase": "base",
}
# Modules whose rules belong on the page beside the classes.
_RULES: Final = {"Keys": "keys", "Values": "blobs", "The pair guard": "guard", "Batches": "batch"}

# What the connector alone calls.
_INSIDE: Final = ("has_all", "write", "read", "discard", "count_slots", "gather", "scatter")

_HEAD: Final = f"""\
# `{_PACKAGE}`

Made by `make generate` from the docstrings in {_FOLDER}; do not edit. How to use it is in [v0](../v0.md).
"""


def outputs(root: Path) -> dict[Path, str]:
    """docs/reference/connector-v0.md."""
    return {root / "docs" / "reference" / "connector-v0.md": build_page(_SOURCES)}


def build_page(folder: Path) -> str:
    """The page of the package in a folder. Raises ValueError if a public name has no place on it."""
    public = _public_names(_parse(folder, "__init__"))
    if public != set(_SECTIONS):
        msg = f"{_PACKAGE} has other public names than its page: {sorted(public ^ set(_SECTIONS))}"
        raise ValueError(msg)
    parts = [_HEAD]
    for name, module in _SECTIONS.items():
        parts += _section(_find(_parse(folder, module), name))
    for title, module in _RULES.items():
        parts += [f"## {title}", _doc(_parse(folder, module))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _parse(folder: Path, module: str) -> ast.Module:
    return ast.parse((folder / f"{module}.py").read_text())


def _public_names(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def _find(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(name)


def _section(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield f"## `{_signature(node)}`"
        yield _doc(node)
        return
    yield f"## `{node.name}{_constructor(node)}`"
    yield _doc(node)
    if table := list(_fields(node)):
        yield "\n".join(["| name | default or text | meaning |", "|---|---|---|", *table])
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and method.name not in _INSIDE:
            yield f"### `{_signature(method)}`"
            yield _doc(method)


def _constructor(node: ast.ClassDef) -> str:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return _signature(method).removeprefix("__init__").removesuffix(" -> None")
    return ""


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """A row for each value of a class whose members are told by texts below them."""
    for member, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.Assign | ast.AnnAssign) and member.value is not None:
            target = member.target if isinstance(member, ast.AnnAssign) else member.targets[0]
            if ast.unparse(target).startswith("_"):
                continue
            text = below.value if isinstance(below, ast.Expr) else None
            meaning = ast.literal_eval(text) if isinstance(text, ast.Constant) else ""
            yield f"| `{ast.unparse(target)}` | `{ast.unparse(member.value)}` | {inspect.cleandoc(meaning)} |"


def _signature(function: ast.FunctionDef) -> str:
    """Its name, parameters and result, without `self`; a property has no parentheses."""
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    if "property" in decorators:
        return function.name + result.replace(" -> ", ": ")
    parameters = ast.unparse(function.args).removeprefix("self").removeprefix(", ")
    return f"{function.name}({parameters}){result}"


def _doc(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""
