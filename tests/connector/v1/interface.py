"""What a package's sources offer and ask for, read without running them: names, base classes, methods, parameters."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Method:
    """A method of a class. `kind` is its decorator's name, of those that change how it is called, or empty."""

    owner: str
    name: str
    kind: str
    is_abstract: bool
    arguments: ast.arguments

    @property
    def positional(self) -> list[str]:
        """Names of what is given by position, without self."""
        return [one.arg for one in (*self.arguments.posonlyargs, *self.arguments.args)][1:]

    @property
    def required(self) -> list[str]:
        """Those without which it cannot be called."""
        count = len(self.arguments.defaults)
        optional = set(self.positional[len(self.positional) - count :]) if count else set()
        keywords = zip(self.arguments.kwonlyargs, self.arguments.kw_defaults, strict=True)
        return [name for name in self.positional if name not in optional] + [
            one.arg for one, default in keywords if default is None
        ]


def why_unfit(ours: Method, theirs: Method) -> str:
    """Why a call that `theirs` takes cannot be made to `ours`, or an empty string."""
    if ours.kind != theirs.kind:
        return f"it is {ours.kind or 'a plain method'}, and {theirs.kind or 'a plain method'} there"
    shared = theirs.positional[: len(ours.positional)]
    if ours.positional[: len(shared)] != shared:
        return f"its parameters are {ours.positional}, and {theirs.positional} there"
    extra = [name for name in ours.required if name not in theirs.positional and not _has(theirs, name)]
    if extra:
        return f"nobody gives it {extra}"
    rest = theirs.positional[len(ours.positional) :]
    if rest and ours.arguments.vararg is None:
        return f"it does not take {rest}"
    if theirs.arguments.kwarg is not None and ours.arguments.kwarg is None:
        return "it takes no further keywords"
    lacking = [one.arg for one in theirs.arguments.kwonlyargs if not _has(ours, one.arg)]
    return f"it does not take {lacking}" if lacking and ours.arguments.kwarg is None else ""


def _has(method: Method, keyword: str) -> bool:
    return keyword in [one.arg for one in method.arguments.kwonlyargs]


class Sources:
    """The modules below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tree(self, module: str) -> ast.Module | None:
        """The module's syntax; None if there is no such module."""
        path = self._folder.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text())
        return None

    def has(self, module: str, name: str) -> bool:
        """Whether `from module import name` finds something."""
        tree = self.tree(module)
        if tree is None:
            return False
        return name in set(_defined(tree.body)) or self.tree(f"{module}.{name}") is not None

    def classes(self, module: str) -> dict[str, ast.ClassDef]:
        """The classes that a module defines."""
        tree = self.tree(module)
        return {node.name: node for node in (tree.body if tree else []) if isinstance(node, ast.ClassDef)}

    def methods(self, module: str, name: str) -> dict[str, Method]:
        """A class's methods, and those of its bases in the same module."""
        classes = self.classes(module)
        if name not in classes:
            return {}
        found: dict[str, Method] = {}
        for base in bases_of(classes[name]):
            found |= self.methods(module, base)
        return found | {method.name: method for method in _methods(classes[name])}

    def fields(self, module: str, name: str) -> dict[str, bool]:
        """A record's own fields, and whether each has a default."""
        body = self.classes(module)[name].body
        found = [node for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
        return {node.target.id: node.value is not None for node in found if isinstance(node.target, ast.Name)}


def bases_of(node: ast.ClassDef) -> list[str]:
    """The names of a class's bases."""
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def imports_of(tree: ast.AST, package: str) -> Iterator[tuple[str, str, str]]:
    """(module, name, name here) of all that is imported from a package; the name is empty for a whole module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
            yield from ((node.module, one.name, one.asname or one.name) for one in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "", "") for one in node.names if one.name.split(".")[0] == package)


def _methods(node: ast.ClassDef) -> Iterator[Method]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef):
            decorators = [ast.unparse(decorator) for decorator in one.decorator_list]
            kinds = [kind for kind in decorators if kind in ("property", "classmethod", "staticmethod")]
            yield Method(node.name, one.name, "".join(kinds), "abstractmethod" in decorators, one.args)


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module's own statements bind, those under conditions included."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name for one in names)
            case ast.Assign(targets=targets):
                yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from _defined(inner)
                yield from _defined(other)
