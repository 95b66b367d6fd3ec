"""The connector fits vLLM's classes in the version that it runs in, and in the next one, by their sources."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from connector.environment import connector_path, engine_environment
from connector.v1.interface import Method, Sources, bases_of, imports_of, why_unfit
from connector.v1.next_version import next_sources

PACKAGE = "mooncake_store_connector.v1"
OURS = Sources(Path(connector_path()))
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"


def present_sources() -> Path:
    return engine_environment() / "lib" / "python3.11" / "site-packages"


@pytest.fixture(scope="module", params=[present_sources, next_sources], ids=["0.32.0", "0.33.0"])
def theirs(request: pytest.FixtureRequest) -> Sources:
    find: Callable[[], Path] = request.param
    return Sources(find())


def modules() -> list[str]:
    """Those of the V1 connector."""
    folder = Path(connector_path(), *PACKAGE.split("."))
    return [f"{PACKAGE}.{file.stem}" for file in sorted(folder.glob("*.py")) if file.stem != "__init__"]


def heirs() -> list[tuple[str, str, dict[str, str]]]:
    """(module, class, its bases of vLLM with their modules) of all our classes that have such bases."""
    found = []
    for module in modules():
        tree = OURS.tree(module)
        assert tree is not None
        origins = {here: home for home, _, here in imports_of(tree, "vllm")}
        for name, node in OURS.classes(module).items():
            bases = {base: origins[base] for base in bases_of(node) if base in origins}
            if bases:
                found.append((module, name, bases))
    return found


@pytest.mark.parametrize("module", modules())
def test_what_is_imported_is_there(theirs: Sources, module: str) -> None:
    tree = OURS.tree(module)
    assert tree is not None
    lacking = [
        (home, name)
        for home, name, _ in imports_of(tree, "vllm")
        if not (theirs.has(home, name) if name else theirs.tree(home) is not None)
    ]
    assert lacking == []


def test_classes_that_are_checked() -> None:
    assert {name for _, name, _ in heirs()} == {
        "MooncakeStoreConnector",
        "StoreMetadata",
        "StoreWorkerMetadata",
        "StoreStats",
        "StorePromMetrics",
    }
    connector = next(bases for _, name, bases in heirs() if name == "MooncakeStoreConnector")
    assert connector == {"KVConnectorBase_V1": BASE, "SupportsHMA": BASE}


@pytest.mark.parametrize(("module", "name", "bases"), heirs(), ids=[name for _, name, _ in heirs()])
def test_methods_can_be_called_as_their_class_says(
    theirs: Sources, module: str, name: str, bases: dict[str, str]
) -> None:
    inherited: dict[str, Method] = {}
    for base, home in bases.items():
        assert base in theirs.classes(home)
        inherited |= theirs.methods(home, base)
    own = OURS.methods(module, name)
    assert [one for one in inherited.values() if one.is_abstract and one.name not in own] == []
    public = {one.name for one in own.values() if not one.name.startswith("_")}
    assert public - inherited.keys() == set(), "vLLM never calls these"
    reasons = {one: why_unfit(own[one], inherited[one]) for one in own.keys() & inherited.keys() if one in public}
    assert {one: why for one, why in reasons.items() if why} == {}


def test_it_is_made_as_vllm_makes_it() -> None:
    made = OURS.methods(f"{PACKAGE}.connector", "MooncakeStoreConnector")["__init__"]
    assert made.positional == ["vllm_config", "role", "kv_cache_config"]


@pytest.mark.parametrize(("event", "method"), [("BlockStored", "stored"), ("BlockRemoved", "removed")])
def test_events_have_the_fields_that_they_are_given(theirs: Sources, event: str, method: str) -> None:
    """Another version's lacking ones are left out, so that a misspelt one would be told of nowhere else."""
    fields = theirs.fields("vllm.distributed.kv_events", event)
    tree = OURS.tree(f"{PACKAGE}.wording")
    assert tree is not None
    given = keys_in(tree, method) | (keys_in(tree, "fact") if method == "stored" else set())
    assert given <= fields.keys()
    assert {name for name, has_default in fields.items() if not has_default} <= given


def keys_in(tree: ast.Module, function: str) -> set[str]:
    """The texts that a function's dictionaries have as keys."""
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
    keys = [key for node in ast.walk(found) if isinstance(node, ast.Dict) for key in node.keys]
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ("def f(self, a, b=1): ...", "def f(self, a): ...", ""),
        ("def f(self, *rest): ...", "def f(self, a, b): ...", ""),
        ("def f(self, a, **more): ...", "def f(self, a, *, key): ...", ""),
        ("def f(self, b): ...", "def f(self, a): ...", "its parameters are ['b'], and ['a'] there"),
        ("def f(self, a, b): ...", "def f(self, a): ...", "nobody gives it ['b']"),
        ("def f(self, a): ...", "def f(self, a, b=1): ...", "it does not take ['b']"),
        ("def f(self, a): ...", "def f(self, a, **more): ...", "it takes no further keywords"),
        ("def f(self, a): ...", "def f(self, a, *, key=1): ...", "it does not take ['key']"),
        ("@property\n def f(self): ...", "def f(self): ...", "it is property, and a plain method there"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, ours: str, theirs: str, told: str) -> None:
    (tmp_path / "one.py").write_text(
        "".join(f"class {name}:\n {text}\n" for name, text in (("A", ours), ("B", theirs)))
    )
    sources = Sources(tmp_path)
    assert why_unfit(sources.methods("one", "A")["f"], sources.methods("one", "B")["f"]) == told
