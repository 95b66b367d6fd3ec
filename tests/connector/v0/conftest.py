"""Workers that several tests share: starting one takes seconds."""

from collections.abc import Iterator

import pytest

from connector.v0.programs import SEGMENT, Site, Worker, site


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("v0")) as made:
        yield made


@pytest.fixture(scope="module")
def raw(store: Site) -> Worker:
    """Looks into the store, and lends all its memory: values outlive the connectors that wrote them."""
    return store.raw(SEGMENT)


@pytest.fixture(scope="module")
def producer(store: Site, raw: Worker) -> Worker:
    del raw
    return store.worker()


@pytest.fixture(scope="module")
def consumer(store: Site, raw: Worker) -> Worker:
    del raw
    return store.worker()
