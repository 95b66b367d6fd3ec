"""Reads all that one reconcile decides on: the children that are there, the pods, and the master's segments."""

import asyncio
from collections.abc import Iterable
from typing import Final

from disagg_operator.api.names import LABEL_MANAGED_BY, LABEL_NAME, LABEL_ROLE, MANAGED_BY, PORT_MASTER_ADMIN, Component
from disagg_operator.api.names import child_name as name_of_child
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.kinds import (
    CHILDREN,
    DEPLOYMENT,
    LEADER_WORKER_SET,
    POD,
    POD_MONITOR,
    Kind,
    Manifest,
    kind_of,
)
from disagg_operator.kube.master import list_segments
from disagg_operator.plan.changes import object_key
from disagg_operator.status.observation import Observation, count_shared, observe_part, pods_of

_WORKLOADS: Final = (DEPLOYMENT.kind, LEADER_WORKER_SET.kind)
# A client with a few connections; more at once would only wait for each other.
_AT_ONCE: Final = 8


def list_kinds(facts: ClusterFacts) -> list[Kind]:
    """Kinds of children that this cluster can have."""
    optional = {POD_MONITOR: facts.has_pod_monitor, LEADER_WORKER_SET: facts.has_leader_worker_set}
    return [*CHILDREN, *(kind for kind, is_served in optional.items() if is_served)]


async def read_children(client: KubeClient, facts: ClusterFacts, namespace: str, name: str) -> list[Manifest]:
    """Every object that carries this resource's labels, whoever owns it."""
    selector = f"{LABEL_NAME}={name},{LABEL_MANAGED_BY}={MANAGED_BY}"
    lists = await asyncio.gather(*(client.list(kind, namespace, selector) for kind in list_kinds(facts)))
    return [item for items in lists for item in items]


async def read_pods(client: KubeClient, namespace: str, name: str) -> list[Manifest]:
    """The pods of a resource."""
    return await client.list(POD, namespace, f"{LABEL_NAME}={name}")


async def read_unlabelled(client: KubeClient, wanted: Iterable[Manifest], there: Iterable[Manifest]) -> list[Manifest]:
    """Objects of the wanted names that `there` lacks: somebody else's, or ours with the labels taken off."""
    known = {object_key(child) for child in there}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(child: Manifest) -> Manifest | None:
        async with gate:
            metadata = child["metadata"]
            found = await client.get(kind_of(child), metadata["namespace"], metadata["name"])
        return found and {"apiVersion": child["apiVersion"], "kind": child["kind"], **found}

    found = await asyncio.gather(*(read(child) for child in wanted if object_key(child) not in known))
    return [item for item in found if item is not None]


def workloads_of(manifests: Iterable[Manifest]) -> dict[Component, Manifest]:
    """The workload of each part."""
    return {
        Component(manifest["metadata"]["labels"][LABEL_ROLE]): manifest
        for manifest in manifests
        if manifest["kind"] in _WORKLOADS and manifest["metadata"].get("labels", {}).get(LABEL_ROLE) in set(Component)
    }


async def observe(
    namespace: str, name: str, wanted: Iterable[Manifest], live: Iterable[Manifest], pods: list[Manifest]
) -> Observation:
    """What is seen of a resource: each part that is wanted or there, and what its own master says."""
    wishes, there = workloads_of(wanted), workloads_of(live)
    parts = {
        component: observe_part(component, wishes.get(component), there.get(component), pods_of(component, pods))
        for component in Component
        if component in wishes or component in there
    }
    if Component.MASTER not in parts or parts[Component.MASTER].ready == 0:
        return Observation(parts)
    host = f"{name_of_child(name, Component.MASTER)}.{namespace}.svc"
    segments = await list_segments(f"http://{host}:{PORT_MASTER_ADMIN}")
    return Observation(parts, segments, count_shared(segments or (), pods))
