"""Whether the watch tells the truth, and what a sweep adds to the queue."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import Kind
from disagg_operator.reconcile import Key
from disagg_operator.sweep import Sweep, Watched, find_readable
from disagg_operator.workqueue import Urgency

A, B = Key("n", "a"), Key("n", "b")


def watched() -> tuple[Watched, list[Key]]:
    added: list[Key] = []
    return Watched(lambda key, _: added.append(key)), added


def test_events_become_keys_and_only_a_new_generation_is_an_edit() -> None:
    added: list[tuple[Key, Urgency]] = []
    watch = Watched(lambda key, urgency: added.append((key, urgency)))
    watch.resource_changed(A, "1", 1)
    watch.child_changed(B)
    watch.resource_changed(A, "2", 1)
    watch.resource_changed(A, "3", 2)
    watch.resource_gone(A)
    watch.resource_changed(A, "4", 2)
    edited, changed = Urgency.EDITED, Urgency.CHANGED
    assert added == [(A, edited), (B, changed), (A, changed), (A, edited), (A, changed), (A, edited)]


def test_a_watch_that_is_up_to_date_has_no_age() -> None:
    watch, _ = watched()
    watch.resource_changed(A, "1", 1)
    assert watch.compare({A: "1"}, 100) == []
    assert watch.age(1000) == 0


def test_a_watch_that_stands_still_ages() -> None:
    watch, _ = watched()
    watch.resource_changed(A, "1", 1)
    assert watch.compare({A: "2"}, 100) == [A]
    assert watch.compare({A: "3"}, 160) == [A]
    assert watch.age(160) == 60


def test_a_watch_that_moves_is_only_late() -> None:
    watch, _ = watched()
    watch.resource_changed(A, "1", 1)
    watch.compare({A: "2"}, 100)
    watch.resource_changed(A, "2", 1)
    watch.compare({A: "3"}, 160)
    assert watch.age(160) == 0
    watch.resource_changed(A, "3", 1)
    watch.compare({A: "3"}, 220)
    assert watch.age(220) == 0


def test_a_resource_that_the_watch_never_brought() -> None:
    watch, _ = watched()
    assert watch.compare({A: "1"}, 100) == [A]
    watch.compare({A: "1"}, 300)
    assert watch.age(300) == 200


def test_what_is_gone_is_no_reproach() -> None:
    watch, _ = watched()
    watch.compare({A: "1"}, 100)
    watch.compare({}, 200)
    assert watch.age(300) == 0


class Client:
    def __init__(self, versions: dict[str, str], forbidden: set[str] | None = None) -> None:
        self.versions = versions
        self.forbidden = forbidden or set()
        self.asked: list[str] = []

    async def walk(self, kind: Kind, namespace: str) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(namespace)
        if namespace in self.forbidden:
            raise ApiError(403, "Forbidden", f"cannot list in {namespace}")
        for name, version in self.versions.items():
            yield {"metadata": {"namespace": "n", "name": name, "resourceVersion": version}}


def sweep(client: Client, watch: Watched, facts: ClusterFacts, namespaces: tuple[str, ...] = ()) -> Sweep:
    async def find() -> ClusterFacts:
        return facts

    return Sweep(client, watch, namespaces, 600, find, ClusterFacts())  # type: ignore[arg-type]


async def test_a_sweep_adds_what_was_missed_and_a_resync_adds_all() -> None:
    watch, added = watched()
    watch.resource_changed(A, "1", 1)
    added.clear()
    sweeper = sweep(Client({"a": "1", "b": "1"}), watch, ClusterFacts())
    assert not await sweeper.look(add_all=False)
    assert added == [B]
    assert await sweeper.look(add_all=True)
    assert added == [B, A, B]


async def test_a_resync_of_many_does_not_add_them_all_at_once() -> None:
    watch, added = watched()
    versions = {f"m-{number:03}": "1" for number in range(1000)}
    looking = asyncio.create_task(sweep(Client(versions), watch, ClusterFacts()).look(add_all=True))
    while not added:  # noqa: ASYNC110  # what is waited for tells nobody
        await asyncio.sleep(0)
    assert len(added) < len(versions)
    looking.cancel()


async def test_a_new_kind_in_the_cluster_concerns_every_resource() -> None:
    watch, added = watched()
    watch.resource_changed(A, "1", 1)
    added.clear()
    sweeper = sweep(Client({"a": "1"}), watch, ClusterFacts(has_pod_monitor=True))
    await sweeper.look(add_all=False)
    assert added == [A]
    assert sweeper.current_facts().has_pod_monitor
    await sweeper.look(add_all=False)
    assert added == [A]


async def test_only_watched_namespaces_are_listed() -> None:
    watch, _ = watched()
    client = Client({})
    await sweep(client, watch, ClusterFacts(), ("x", "y")).look(add_all=False)
    assert client.asked == ["x", "y"]
    await sweep(client, watch, ClusterFacts()).look(add_all=False)
    assert client.asked == ["x", "y", ""]


async def test_a_namespace_that_cannot_be_read_keeps_no_other_back_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, added = watched()
    client = Client({"a": "1"}, forbidden={"y"})
    sweeper = sweep(client, watch, ClusterFacts(), ("y", "x"))
    with caplog.at_level(logging.ERROR):
        await sweeper.look(add_all=True)
        await sweeper.look(add_all=True)
    assert added == [A, A]
    assert [record.getMessage() for record in caplog.records] == [
        "namespace y cannot be read, so nothing in it is looked after: cannot list in y"
    ]


async def test_without_rights_in_the_cluster_nothing_is_judged() -> None:
    watch, added = watched()
    watch.compare({A: "1"}, 100)
    with pytest.raises(ApiError):
        await sweep(Client({}, forbidden={""}), watch, ClusterFacts()).look(add_all=True)
    assert (added, watch.age(160)) == ([], 60)


async def test_only_what_can_be_read_is_watched_and_what_comes_later_ends_the_sweep() -> None:
    watch, _ = watched()
    client = Client({}, forbidden={"y"})
    readable = await find_readable(client, ("x", "y"))  # type: ignore[arg-type]
    assert readable == ("x",)
    sweeper = sweep(client, watch, ClusterFacts(), ("x", "y"))
    sweeper.resync_seconds, sweeper.unreadable = 0.01, frozenset({"y"})
    running = asyncio.create_task(sweeper.run())
    await asyncio.sleep(0.1)
    assert not running.done()
    client.forbidden = {"x"}
    async with asyncio.timeout(5):
        await running
    assert sweeper.unreadable == {"x"}, "one that went away since is no reason to end, nor to stay"


async def test_who_cannot_tell_is_asked_again() -> None:
    class Unreachable(Client):
        def walk(self, kind: Kind, namespace: str) -> AsyncIterator[dict[str, Any]]:
            raise ApiError(0, "Unreachable", "no route")

    with pytest.raises(ApiError):
        await find_readable(Unreachable({}), ("x",))  # type: ignore[arg-type]
