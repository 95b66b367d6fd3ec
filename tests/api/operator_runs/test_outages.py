"""Field case C29: the API server is lost in every way, and then an edit is acted on, with no help and no restart.

The bound is twice the sweep's minute, whatever the watches do; with the API server back they are faster as a rule.
"""

import base64
import json
import signal
import time
import urllib.request
from typing import Any

import pytest
from api.manifests import resource
from api.operator_runs.proxy import Faults, fault_proxy
from api.operator_runs.relay import relay
from api.operator_runs.site import Operator, Site
from api.operator_runs.test_quiet import count, is_up, neighbour
from cluster import control_plane
from cluster.apiserver import ApiServer
from cluster.processes import Processes
from router.programs import eventually

# Outages last minutes by nature.
pytestmark = pytest.mark.long

# Seconds within which an edit is acted on once the API server can be reached.
BOUND = 120.0
# After so many seconds without a word from the watch, though the list tells news, the process is to be restarted.
LIVENESS = 150.0


def change(site: Site, replicas: int) -> None:
    site.apply(resource("llama", decode={"replicas": replicas}))


def begin(site: Site, operator: Operator) -> None:
    """An operator that works, and a resource that is built."""
    eventually(lambda: is_up(operator), "it is up", 60)
    change(site, 1)
    site.wait_built("llama")


def wait_done(site: Site, replicas: int, seconds: float = BOUND) -> None:
    what = f"decode runs {replicas}"
    eventually(lambda: site.live("deployments", "llama-decode")["spec"]["replicas"] == replicas, what, seconds)


def restart(server: ApiServer) -> None:
    """End the API server as a node's reboot does, and start it again over the same etcd."""
    processes = Processes(server.plane.directory / "processes")
    processes.stop("kube-apiserver", grace=1)
    control_plane.start_api(server.plane, processes)


def etcd(server: ApiServer, call: str, **body: Any) -> dict[str, Any]:
    """One call to etcd, by its JSON gateway."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.plane.etcd_port}/v3/kv/{call}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - an address of our own
        return dict(json.load(answer))


def compact(server: ApiServer) -> None:
    """Have etcd forget all but the present: who asks for what was, is answered that it is gone."""
    here = etcd(server, "range", key=base64.b64encode(b"\0").decode(), limit=1)
    etcd(server, "compaction", revision=here["header"]["revision"], physical=True)


def test_connections_that_are_lost_without_a_word(spare: Site) -> None:
    """For two minutes nothing gets through, and what was open then stays silent for ever."""
    with (
        relay(spare.server.kubeconfig_for(spare.user)) as (network, through),
        spare.operator(kubeconfig=through) as operator,
    ):
        begin(spare, operator)
        network.lose()
        time.sleep(120)
        network.heal()
        change(spare, 2)
        wait_done(spare, 2)
        assert operator.program.running
        change(spare, 3)
        wait_done(spare, 3)
        spare.delete("services", "llama-router")
        eventually(lambda: spare.get("services", "llama-router") is not None, "a child comes back", BOUND)
        eventually(lambda: is_up(operator) and watch_age(operator) == 0, "the watch is up to date", BOUND)


def watch_age(operator: Operator) -> float:
    return count(operator, "disaggregatedinference_watch_age_seconds")


def test_an_edit_made_in_the_dark_is_acted_on_in_the_light(spare: Site) -> None:
    with (
        relay(spare.server.kubeconfig_for(spare.user)) as (network, through),
        spare.operator(kubeconfig=through) as operator,
    ):
        begin(spare, operator)
        network.lose()
        change(spare, 2)
        spare.delete("services", "llama-router")
        time.sleep(20)
        network.heal()
        wait_done(spare, 2)
        eventually(lambda: spare.get("services", "llama-router") is not None, "a child comes back", BOUND)


def test_a_leader_in_the_dark_ends_and_the_other_goes_on(spare: Site) -> None:
    """It cannot know, so it must not go on; its container is started again."""
    with (
        relay(spare.server.kubeconfig_for(spare.user)) as (network, through),
        spare.operator("--leader-elect", kubeconfig=through) as first,
    ):
        begin(spare, first)
        with spare.operator("--leader-elect"):
            network.lose()
            change(spare, 2)
            assert first.program.wait(60) == 1
            wait_done(spare, 2)


@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster-wide", "one-namespace"])
def test_an_api_server_that_is_restarted(spare: Site, *, everywhere: bool) -> None:
    home = neighbour(spare, "home")
    home.grant_everywhere()
    with (home if everywhere else spare).operator(everywhere=everywhere) as operator:
        begin(spare, operator)
        for replicas in (2, 3):
            restart(spare.server)
            change(spare, replicas)
            wait_done(spare, replicas)
        assert operator.program.running


def test_a_past_that_is_compacted_away(spare: Site) -> None:
    """410 Gone: the watch cannot go on from where it was, and misses what came between."""
    with spare.operator() as operator:
        begin(spare, operator)
        spare.wait_quiet("llama")
        operator.program.send(signal.SIGSTOP)
        change(spare, 2)
        for number in range(20):
            spare.edit("dinf", "llama", {"metadata": {"labels": {"turn": str(number)}}})
        restart(spare.server)
        compact(spare.server)
        operator.program.send(signal.SIGCONT)
        wait_done(spare, 2)
        change(spare, 3)
        wait_done(spare, 3)
        assert operator.program.running


def test_a_watch_that_stays_dead_fails_the_liveness_probe(spare: Site) -> None:
    """It goes on to work by its sweeps, and is to be restarted all the same."""
    faults = Faults(swallows=lambda path, line: "disaggregatedinferences" in path and b'"llama"' in line)
    with (
        fault_proxy(spare.server.kubeconfig_for(spare.user), faults) as through,
        spare.operator("--resync-seconds=2", kubeconfig=through) as operator,
    ):
        eventually(lambda: is_up(operator), "it is up")
        for replicas in (1, 2):
            change(spare, replicas)
            spare.wait_built("llama")
            wait_done(spare, replicas)
        assert is_up(operator), "not at once"
        eventually(lambda: not is_up(operator), "the probe fails", LIVENESS + 60)
