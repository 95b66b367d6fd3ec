"""Two programs with an engine each, on one store, and what engines without a connector answer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from connector.environment import engine_environment
from connector.kinds.programs import TURNS, Case, Engine, Right, Turn, make_models
from connector.processes import master


@dataclass
class Pair:
    """Prefill and decode."""

    prefill: Engine
    decode: Engine


Plain = Callable[[Case], Right]


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
    known: dict[Case, Right] = {}

    def ids(case: Case) -> Right:
        if case not in known:
            pair.prefill.open(case, shares=False)
            known[case] = _right(case, pair.prefill)
        return known[case]

    return ids


def _right(case: Case, engine: Engine) -> Right:
    turns, prompts = [], case.openings()
    for _ in range(TURNS):
        answers = engine.ask(prompts).ids
        turns.append(Turn(prompts, answers))
        prompts = case.follow(prompts, answers)
    # One at a time, as they are asked where they are to be loaded: of two at once, one would have the other's prefix.
    alike = [engine.ask([prompt]).ids[0] for prompt in case.alike()]
    return Right(engine.ask(case.prompts()).ids, turns, alike)
