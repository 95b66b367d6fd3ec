"""Two programs with an engine each, on one store, and what engines without a connector answer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from connector.environment import engine_environment
from connector.kinds.programs import Case, Engine, make_models
from connector.processes import master


@dataclass
class Pair:
    """Prefill and decode."""

    prefill: Engine
    decode: Engine


Plain = Callable[[Case], list[list[int]]]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all kinds."""
    engine_environment()
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture(scope="session")
def pair(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("kinds")
    with ExitStack() as running:
        port, _ = running.enter_context(master(folder / "master.log"))
        engines = [Engine(folder / role, models, port) for role in ("p", "d")]
        for engine in engines:
            running.callback(engine.close)
        yield Pair(*engines)


@pytest.fixture(scope="session")
def plain(pair: Pair) -> Plain:
    """Token ids without a connector, from an engine in prefill's place. It is started once a case."""
    known: dict[Case, list[list[int]]] = {}

    def ids(case: Case) -> list[list[int]]:
        if case not in known:
            pair.prefill.open(case, shares=False)
            known[case] = pair.prefill.ask(case.prompts()).ids
        return known[case]

    return ids
