"""One API server for all tests of the router; a namespace, engines and routers for each module."""

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from router.apiserver import Api, api_server
from router.programs import free_port
from router.stack import Stack

_numbers = itertools.count()


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with api_server(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture(scope="module")
def stack(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An empty stack in a new namespace."""
    namespace = f"router-{next(_numbers)}"
    api.new_namespace(namespace)
    made = Stack(api, namespace, tmp_path_factory.mktemp(namespace))
    yield made
    made.end()


@pytest.fixture
def small(stack: Stack) -> Iterator[Stack]:
    """A stack for one test: its engines and routers are gone after it."""
    yield stack
    for engine in stack.engines:
        with contextlib.suppress(OSError):
            engine.hide()
    stack.end()
    stack.engines.clear()
    stack.routers.clear()
    stack.engine_port = free_port("127.0.0.2")
