"""Who may lead, and when a leader gives up. The API server is a stand-in that keeps one Lease and its versions."""

import asyncio
import copy
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from disagg_operator.kube import lease
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import Kind
from disagg_operator.kube.lease import Candidate, Election, Sight, is_free, renewed_spec, see

Json = dict[str, Any]
NOW = datetime(2026, 11, 30, tzinfo=UTC)


class Server:
    """One Lease under optimistic concurrency. `hangs` and `fails` are what a bad network does."""

    def __init__(self) -> None:
        self.body: Json | None = None
        self.version = 0
        self.hangs = self.fails = False

    async def get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        await self._network()
        return copy.deepcopy(self.body)

    async def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        await self._network()
        if self.body is not None:
            raise ApiError(409, "AlreadyExists", "exists")
        return self._store(body)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        await self._network()
        if body["metadata"]["resourceVersion"] != self.version:
            raise ApiError(409, "Conflict", "changed")
        return self._store(body)

    def _store(self, body: Json) -> Json:
        self.version += 1
        self.body = copy.deepcopy(body)
        self.body["metadata"]["resourceVersion"] = self.version
        return self.body

    async def _network(self) -> None:
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise ApiError(0, "Unreachable", "no route")

    @property
    def holder(self) -> str:
        return str((self.body or {}).get("spec", {}).get("holderIdentity", ""))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(lease, "GIVE_UP_SECONDS", 0.1)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.2)
    return Server()


def election(server: Server, name: str) -> Election:
    return Election(server, Candidate(name, "ns", "lease"))  # type: ignore[arg-type]


async def test_one_of_many_leads(server: Server) -> None:
    tasks = [asyncio.create_task(election(server, name).acquire()) for name in "abc"]
    done, waiting = await asyncio.wait(tasks, timeout=0.1)
    assert (len(done), len(waiting)) == (1, 2)
    for task in waiting:
        task.cancel()


async def test_a_holder_that_is_gone_is_replaced(server: Server) -> None:
    await election(server, "a").acquire()
    async with asyncio.timeout(5):
        await election(server, "b").acquire()
    assert server.holder == "b"
    assert server.body is not None
    assert server.body["spec"]["leaseTransitions"] == 1


async def test_a_holder_that_renews_keeps_it(server: Server) -> None:
    first = election(server, "a")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(election(server, "b").acquire())
    await asyncio.sleep(0.5)
    assert not holding.done()
    assert not waiting.done()
    for task in (holding, waiting):
        task.cancel()


@pytest.mark.parametrize("trouble", ["hangs", "fails"])
async def test_a_holder_that_cannot_renew_gives_up_before_another_may_take_it(server: Server, trouble: str) -> None:
    first = election(server, "a")
    await first.acquire()
    setattr(server, trouble, True)
    async with asyncio.timeout(5):
        await first.hold()
    assert lease.GIVE_UP_SECONDS < lease.LEASE_SECONDS


async def test_a_holder_that_was_replaced_gives_up(server: Server) -> None:
    first = election(server, "a")
    await first.acquire()
    assert server.body is not None
    server._store({**server.body, "spec": renewed_spec(server.body, "b", NOW)})
    async with asyncio.timeout(5):
        await first.hold()


async def test_a_leader_is_sure_while_it_renews_and_not_after_standing_still(server: Server) -> None:
    first = election(server, "a")
    assert not first.is_sure(), "nobody leads unasked"
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(0.3)
    assert first.is_sure()
    # As when the whole process was stopped: no task of it has run since, so none has looked at a clock.
    time.sleep(0.15)  # noqa: ASYNC251
    assert not first.is_sure()
    assert not holding.done()
    holding.cancel()


async def test_a_lease_that_is_deleted_is_its_holders_still(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "GIVE_UP_SECONDS", 5)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1)
    first, second = election(server, "a"), election(server, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.03)
    server.body = None
    await asyncio.sleep(0.03)
    assert (server.body, waiting.done()) == (None, False), "the other saw it held"
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(0.03)
    assert server.holder == "a"
    holding.cancel()
    server.body = None
    async with asyncio.timeout(5):
        await waiting
    assert server.holder == "b", "not for ever"


async def test_what_is_released_is_free_at_once(server: Server) -> None:
    first = election(server, "a")
    await first.acquire()
    await first.release()
    async with asyncio.timeout(5):
        await election(server, "b").acquire()


async def test_somebody_elses_lease_is_not_released(server: Server) -> None:
    await election(server, "a").acquire()
    await election(server, "b").release()
    assert server.holder == "a"


def test_the_clocks_of_two_machines_are_not_compared() -> None:
    held: Json = {
        "spec": {"holderIdentity": "a", "renewTime": "1999-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    }
    first = see(held, None, 100.0)
    assert not is_free(held, "b", first, 100.0), "an old time may be a slow clock"
    assert see(held, first, 110.0) is first
    assert not is_free(held, "b", first, 115.0)
    assert is_free(held, "b", first, 115.1)
    renewed = {"spec": {**held["spec"], "renewTime": "1999-01-01T00:00:05.000000Z"}}
    assert see(renewed, first, 110.0) == Sight("a", "1999-01-01T00:00:05.000000Z", 110.0)
