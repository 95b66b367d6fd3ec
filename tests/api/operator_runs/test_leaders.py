"""Two replicas of the operator, killed or stopped at any moment: the other goes on, and never do both write.

Each replica has an identity of its own, so the API server's audit log tells who wrote what, and who held the Lease at
that time.
"""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from api.manifests import resource
from api.operator_runs.site import Operator, Site, holds_for
from api.operator_runs.test_quiet import count, is_up
from router.programs import eventually

Json = dict[str, Any]
LEADER = "disaggregatedinference_leader"


@dataclass
class Replicas:
    """The operators of a site, those that ended included."""

    site: Site
    started: list[Operator]

    def start(self) -> Operator:
        """One more. Returns it when it is up."""
        operator = self.site.start("--leader-elect", "--resync-seconds=5", replica=str(len(self.started)))
        self.started.append(operator)
        eventually(lambda: is_up(operator), "it is up", 120)
        return operator

    def leader(self) -> Operator:
        """Who leads, as soon as somebody does."""
        found: list[Operator] = []

        def is_led() -> bool:
            found[:] = [operator for operator in self.started if operator.program.running and is_leading(operator)]
            return bool(found)

        eventually(is_led, "one leads", 120)
        assert len(found) == 1, "one leads"
        return found[0]


def is_leading(operator: Operator) -> bool:
    try:
        return count(operator, LEADER) == 1
    except OSError:
        return False


@contextmanager
def replicas(site: Site, number: int = 2) -> Iterator[Replicas]:
    """So many operators, of which one leads."""
    some = Replicas(site, [])
    try:
        for _ in range(number):
            some.start()
        some.leader()
        yield some
    finally:
        for operator in some.started:
            operator.program.end()


def find_intruders(events: list[Json], users: set[str]) -> list[Json]:
    """Writes by one of the users while another one held the Lease.

    A Lease is somebody's from when its write was answered to when the next one's is asked for: what is between the two
    is nobody's fault.
    """
    written = sorted((e for e in events if e["user"]["username"] in users), key=lambda e: str(e["stageTimestamp"]))
    held = [
        event
        for event in written
        if event["objectRef"]["resource"] == "leases" and event["responseStatus"]["code"] < 300
    ]

    def holder_at(moment: str) -> str:
        return next((e["user"]["username"] for e in reversed(held) if e["stageTimestamp"] < moment), "")

    return [
        event
        for event in written
        if event["objectRef"]["resource"] != "leases"
        and holder_at(event["requestReceivedTimestamp"]) != event["user"]["username"]
    ]


def is_at_odds(intruder: Json, events: list[dict[str, object]]) -> bool:
    """Whether another one had written the same object before, in the same quarter of a minute."""
    late = datetime.fromisoformat(intruder["requestReceivedTimestamp"])
    for event in events:
        same = event["objectRef"] == intruder["objectRef"] and event["user"] != intruder["user"]
        if same and timedelta() < late - datetime.fromisoformat(str(event["stageTimestamp"])) < timedelta(seconds=15):
            return True
    return False


def check_one_writer(some: Replicas, under_way: int = 0) -> None:
    """Nobody wrote who did not lead, but for so many requests that were under way when a process was stopped."""
    users = {operator.user for operator in some.started}
    events = some.site.server.audit()
    writers = {event["user"]["username"] for event in events if event["user"]["username"] in users}  # type: ignore[index]
    assert len(writers) > 1, "more than one has led"
    intruders = find_intruders(events, users)
    told = [(e["user"]["username"], e["verb"], e["objectRef"]) for e in intruders]
    assert len(intruders) <= under_way, told
    assert not [event for event in intruders if is_at_odds(event, events)], told


def wish(site: Site, number: int) -> None:
    """Several resources, created or changed: counts, and what rolls out."""
    env = [{"name": "NCCL_DEBUG", "value": str(number)}]
    for name in ("llama", "qwen", "phi"):
        site.apply(resource(name, prefill={"replicas": 1 + number % 3}, decode={"replicas": 2, "env": env}))


def is_done(site: Site, number: int) -> bool:
    """Whether all of the wish is there, and the status about it."""
    for name in ("llama", "qwen", "phi"):
        prefill, decode = (site.get("deployments", f"{name}-{role}") for role in ("prefill", "decode"))
        body = site.live("dinf", name)
        if prefill is None or decode is None or prefill["spec"]["replicas"] != 1 + number % 3:
            return False
        env = decode["spec"]["template"]["spec"]["containers"][0]["env"]
        if {"name": "NCCL_DEBUG", "value": str(number)} not in env:
            return False
        if body.get("status", {}).get("observedGeneration") != body["metadata"]["generation"]:
            return False
    return True


def runs(site: Site) -> int:
    """Decode's count; 0 while it is not there yet."""
    found = site.get("deployments", "llama-decode")
    return int(found["spec"]["replicas"]) if found else 0


def check_settled(some: Replicas) -> None:
    """Nothing more is written, and nothing is there twice."""
    site = some.site
    for name in ("llama", "qwen", "phi"):
        site.wait_built(name)
        site.wait_quiet(name)
    users = {operator.user for operator in some.started}
    writes = sum(len(site.writes(user)) for user in users)
    assert holds_for(lambda: sum(len(site.writes(user)) for user in users) == writes, 3), "it is settled"


def test_writes_of_one_that_does_not_lead_would_be_seen() -> None:
    """The judge that the tests below rely on."""

    def event(user: str, resource: str, at: int, code: int = 200) -> Json:
        return {
            "user": {"username": user},
            "objectRef": {"resource": resource},
            "requestReceivedTimestamp": f"{at}0",
            "stageTimestamp": f"{at}1",
            "responseStatus": {"code": code},
        }

    good = [event("a", "leases", 1), event("a", "services", 2), event("b", "leases", 3), event("b", "services", 4)]
    assert find_intruders(good, {"a", "b"}) == []
    late, lost = event("a", "services", 5), event("a", "leases", 5, 409)
    assert find_intruders([*good, late, lost], {"a", "b"}) == [late]
    assert find_intruders([event("a", "services", 1)], {"a", "b"}) != []


# A Lease is free 15 s after its holder is gone, so each death takes as long.
@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_leader_killed_at_any_moment_is_followed_by_the_other(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    with replicas(site) as some:
        for number in range(4):
            leader = some.leader()
            wish(site, number)
            time.sleep(chance.uniform(0, 1.5))
            leader.program.send(signal.SIGKILL)
            some.start()
            eventually(lambda number=number: is_done(site, number), "the other brings it about", 150)  # type: ignore[misc]
        check_settled(some)
        check_one_writer(some)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_leader_that_stood_still_writes_nothing_after_it_was_followed(site: Site, seed: int) -> None:
    """Stopped in the midst of its work, and continued just when the other has taken over: it ends at once."""
    chance = random.Random(seed)
    with replicas(site) as some:
        first = some.leader()
        (second,) = [operator for operator in some.started if operator is not first]
        wish(site, 1)
        eventually(lambda: bool(site.writes(first.user)), "it works", 60)
        time.sleep(chance.uniform(0, 0.5))
        first.program.send(signal.SIGSTOP)
        site.apply(resource("llama", decode={"replicas": 7}))
        eventually(lambda: is_leading(second), "the other has taken over", 120)
        first.program.send(signal.SIGCONT)
        assert first.program.wait(20) == 1
        eventually(lambda: runs(site) == 7, "what is newer", 120)
        wish(site, 2)
        eventually(lambda: is_done(site, 2), "the other works on", 150)
        check_settled(some)
        # One for each resource that it worked on: what was asked for just before the stop goes out after it.
        check_one_writer(some, under_way=3)


@pytest.mark.long
def test_a_leader_that_stands_still_for_less_than_its_time_leads_on(site: Site) -> None:
    with replicas(site) as some:
        leader = some.leader()
        for number in range(3):
            leader.program.send(signal.SIGSTOP)
            time.sleep(4)
            leader.program.send(signal.SIGCONT)
            wish(site, number)
            eventually(lambda number=number: is_done(site, number), "it works on", 150)  # type: ignore[misc]
        assert some.leader() is leader
        assert {operator.user for operator in some.started if site.writes(operator.user)} == {leader.user}


@pytest.mark.long
def test_a_lease_that_is_deleted_has_one_holder_again(site: Site) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{site.namespace}/leases/disaggregated-inference-operator"
    with replicas(site) as some:
        site.must("DELETE", path)
        eventually(lambda: site.rest.ask("GET", path).code == 200, "there is a Lease again")
        site.apply(resource("llama"))
        site.wait_built("llama")
        alive = [operator for operator in some.started if operator.program.running and is_leading(operator)]
        assert len(alive) == 1
        events = site.server.audit()
        assert find_intruders(events, {operator.user for operator in some.started}) == []
