"""From whatever crash, refusal or lost event: the wished state is reached, and then nothing more is written.

Crashes and refusals are put at each single write in turn, on the operator's own code in this process: by chance, a
gap of a millisecond would never be hit. Lost events go through a proxy before a whole operator.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from api.manifests import resource
from api.operator_runs.proxy import Faults, fault_proxy
from api.operator_runs.site import Site, holds_for
from api.operator_runs.test_quiet import count, is_up
from api.operator_runs.test_scaling import BY_CPU
from disagg_operator.build.inputs import ClusterFacts, Images, Pins
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.metrics import Metrics
from disagg_operator.reconcile import Key, Reconciler
from disagg_operator.workqueue import TryAgainError
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from router.programs import eventually

Json = dict[str, Any]
# Every fault costs seconds of back-off, so the whole file takes many minutes.
pytestmark = pytest.mark.long

PINS = Pins(Images("engine:1", "engine-cpu:1", "store:1", "router:1"))
FACTS = ClusterFacts(has_scaler=True)


class CrashError(BaseException):
    """The process ends here."""


class FaultyClient(KubeClient):
    """The operator's client; `fault` is asked at each write, by its number from 1, before it and after it."""

    def __init__(self, api: ApiClient, fault: Callable[[int, str], None]) -> None:
        super().__init__(api)
        self._fault = fault
        self.writes = 0

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Json:
        if method == "GET":
            return await super()._call(method, *args, **kwargs)
        self.writes += 1
        number = self.writes
        self._fault(number, "before")
        answer = await super()._call(method, *args, **kwargs)
        self._fault(number, "after")
        return answer


def no_fault(number: int, when: str) -> None:
    """All goes well."""


async def with_client(
    site: Site, fault: Callable[[int, str], None], use: Callable[[FaultyClient], Awaitable[None]]
) -> int:
    """Use a client of the operator's identity; returns how many writes were tried."""
    configuration = Configuration()
    await config.load_kube_config(str(site.server.kubeconfig_for(site.user)), client_configuration=configuration)
    async with FaultyClient(ApiClient(configuration), fault) as client:
        await use(client)
        return client.writes


async def reconcile(site: Site, fault: Callable[[int, str], None] = no_fault) -> int:
    """Look at the resource until it is content, or a fault ends it. Returns the writes tried."""

    async def use(client: FaultyClient) -> None:
        reconciler = Reconciler(client, PINS, lambda: FACTS, Metrics())
        for _ in range(10):
            try:
                again = await reconciler.reconcile(Key(site.namespace, "llama"))
            except TryAgainError:
                continue
            except CrashError:
                return
            if again is None or again >= 5:
                return

    return await with_client(site, fault, use)


def picture(site: Site) -> Json:
    """Everything that was made, without what differs between any two runs."""
    children = {f"{kind}/{name}": plain(child) for (kind, name), child in site.children("llama").items()}
    children = {name: child for name, child in children.items() if "controllerrevisions" not in name}
    status = site.live("dinf", "llama")["status"]
    conditions = sorted((c["type"], c["status"], c["reason"], c["message"]) for c in status["conditions"])
    return {"children": children, "status": {**status, "conditions": conditions}}


def plain(child: Json) -> Json:
    metadata = {key: child["metadata"].get(key) for key in ("labels", "annotations")}
    metadata["annotations"] = sorted(metadata["annotations"] or {})
    body = {key: value for key, value in child.items() if key not in ("metadata", "status")}
    text = json.dumps({"metadata": metadata, **body}, sort_keys=True)
    for field in ("clusterIP", "clusterIPs"):
        if child.get("spec", {}).get(field):
            text = text.replace(json.dumps(child["spec"][field]), '"-"')
    return dict(json.loads(text))


def renew(site: Site) -> None:
    """A new resource in the place of the one before, whose children are gone."""
    if site.get("dinf", "llama") is not None:
        site.delete("dinf", "llama")
        eventually(lambda: not site.children("llama"), "the children before are gone", 60)
    scaling = {"minReplicas": 2, "maxReplicas": 4, "metrics": [BY_CPU]}
    site.apply(resource("llama", prefill={"replicas": 2}, decode={"scaling": scaling}))


def test_a_crash_at_any_write_costs_nothing_but_time(site: Site) -> None:
    """A crash before a write is one after the write before it."""
    renew(site)
    writes = asyncio.run(reconcile(site))
    expected = text_of(site)
    assert writes > 15
    assert asyncio.run(reconcile(site)) == 0, "settled"
    for number in range(1, writes + 1):

        def crash(at: int, moment: str, number: int = number) -> None:
            if (at, moment) == (number, "after"):
                raise CrashError

        renew(site)
        asyncio.run(reconcile(site, crash))
        asyncio.run(reconcile(site))
        assert text_of(site) == expected, f"crashed after write {number}"
        assert asyncio.run(reconcile(site)) == 0, f"not settled after a crash after write {number}"


def text_of(site: Site) -> str:
    """The picture as text, namespace and all that the server gives left out."""
    return json.dumps(picture(site), sort_keys=True).replace(site.namespace, "ns")


@pytest.mark.parametrize(
    "error",
    [ApiError(500, "InternalError", "a webhook failed"), ApiError(409, "Conflict", "changed")],
    ids=["error", "conflict"],
)
def test_a_refusal_of_any_write_is_made_up_for(site: Site, error: ApiError) -> None:
    renew(site)
    writes = asyncio.run(reconcile(site))
    expected = text_of(site)
    for number in range(1, writes + 1):

        def refuse(at: int, moment: str, number: int = number) -> None:
            if (at, moment) == (number, "before"):
                raise error

        renew(site)
        asyncio.run(reconcile(site, refuse))
        asyncio.run(reconcile(site))
        assert text_of(site) == expected, f"write {number} was refused"
        assert "Conflict" not in str(site.live("dinf", "llama")["status"])


def test_events_of_resources_that_are_lost_are_made_up_for_and_told(site: Site) -> None:
    """The watch stays open and is silent, as behind a broken load balancer."""
    faults = Faults(swallows=lambda path, line: "disaggregatedinferences" in path and b'"llama"' in line)
    with (
        fault_proxy(site.server.kubeconfig_for(site.user), faults) as through,
        site.operator("--resync-seconds=1", kubeconfig=through) as operator,
    ):
        eventually(lambda: is_up(operator), "it is up")
        site.apply(resource("llama"))
        site.wait_built("llama")
        site.apply(resource("llama", decode={"replicas": 3}))
        eventually(lambda: site.live("deployments", "llama-decode")["spec"]["replicas"] == 3, "it is scaled")
        age = "disaggregatedinference_watch_age_seconds"
        eventually(lambda: count(operator, age) > 1, "the watch is known to be behind")


def test_events_of_children_that_are_lost_are_made_up_for(site: Site) -> None:
    faults = Faults(swallows=lambda path, line: "services" in path and b"DELETED" in line)
    with (
        fault_proxy(site.server.kubeconfig_for(site.user), faults) as through,
        site.operator("--resync-seconds=2", kubeconfig=through),
    ):
        site.apply(resource("llama"))
        site.wait_built("llama")
        site.delete("services", "llama-router")
        eventually(lambda: site.get("services", "llama-router") is not None, "it is made again")
        site.wait_quiet("llama")
        before = site.versions("llama")
        assert holds_for(lambda: site.versions("llama") == before, 3)
