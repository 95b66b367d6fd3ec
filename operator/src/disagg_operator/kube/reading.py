"""Reads all that one reconcile decides on: the children that are there, the pods, and the master's segments."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from disagg_operator.api.names import (
    ENGINE_ROLES,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_ROLE,
    MANAGED_BY,
    PORT_MASTER_ADMIN,
    WORKLOADS,
    Component,
)
from disagg_operator.api.names import child_name as name_of_child
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import (
    AUTOSCALER,
    CHILDREN,
    CONTROLLER_REVISION,
    EVENT,
    LEADER_WORKER_SET,
    POD,
    POD_MONITOR,
    SCALED_OBJECT,
    SCALER,
    Kind,
    Manifest,
    kind_of,
)
from disagg_operator.kube.master import list_segments
from disagg_operator.plan.changes import object_key
from disagg_operator.status.observation import (
    Observation,
    count_shared,
    find_store_note,
    is_creating,
    last_warning,
    observe_part,
    pods_of,
)

# What is wanted depends on these.
_DECISIVE: Final = (CONTROLLER_REVISION, SCALER)
# A client with a few connections; more at once would only wait for each other.
_AT_ONCE: Final = 8
_ASKED_PODS: Final = 3
_log = logging.getLogger(__name__)


def list_kinds(facts: ClusterFacts) -> list[Kind]:
    """Kinds of children that every resource in this cluster can have."""
    optional = {
        POD_MONITOR: facts.has_pod_monitor,
        LEADER_WORKER_SET: facts.has_leader_worker_set,
        SCALER: facts.has_scaler,
    }
    return [*CHILDREN, *(kind for kind, is_served in optional.items() if is_served)]


def list_autoscalers(facts: ClusterFacts) -> list[Kind]:
    """Kinds of children that stand beside scalers."""
    return [AUTOSCALER, SCALED_OBJECT] if facts.has_scaled_object else [AUTOSCALER]


async def read_children(client: KubeClient, facts: ClusterFacts, body: Manifest) -> list[Manifest]:
    """Every object that carries this resource's labels, whoever owns it.

    Of a resource without conditions only records and scalers: a status comes before the first child, so there is hardly
    anything, and what is wanted is asked for by name in any case. What else there may be is found at the next look.
    Autoscalers are asked for where the resource has scalers, or may have had them: its spec is new. They come first, so
    that they go before the scalers that they move.
    """
    kinds, autoscalers, metadata = list_kinds(facts), list_autoscalers(facts), body["metadata"]
    if not body.get("status", {}).get("conditions"):
        return await _list_labelled(client, [kind for kind in kinds if kind in _DECISIVE], metadata)
    is_new = body.get("status", {}).get("observedGeneration") != metadata["generation"]
    if is_new or any("scaling" in body["spec"].get(role, {}) for role in ENGINE_ROLES):
        # Side by side: the API server may take 0.1 s to be sure that a list is up to date.
        return await _list_labelled(client, [*autoscalers, *kinds], metadata)
    there = await _list_labelled(client, kinds, metadata)
    if any(child["kind"] == SCALER.kind for child in there):
        return [*await _list_labelled(client, autoscalers, metadata), *there]
    return there


async def _list_labelled(client: KubeClient, kinds: Iterable[Kind], metadata: Manifest) -> list[Manifest]:
    selector = f"{LABEL_NAME}={metadata['name']},{LABEL_MANAGED_BY}={MANAGED_BY}"
    lists = await asyncio.gather(*(client.list(kind, metadata["namespace"], selector) for kind in kinds))
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
        if manifest["kind"] in WORKLOADS and manifest["metadata"].get("labels", {}).get(LABEL_ROLE) in set(Component)
    }


async def read_warnings(client: KubeClient, namespace: str, pods: Iterable[Manifest]) -> dict[str, str]:
    """What the kubelet told last about pods that are being created, by name. A few pods speak for all.

    It is a courtesy: without the right to read events, or an answer, there are no warnings.
    """
    found = {}
    for pod in list(pods)[:_ASKED_PODS]:
        fields = f"involvedObject.uid={pod['metadata']['uid']},type=Warning"
        try:
            warning = last_warning(pod, await client.list(EVENT, namespace, fields=fields))
        except ApiError as error:
            _log.debug("events of pod %s: %s", pod["metadata"]["name"], error)
            return {}
        if warning:
            found[pod["metadata"]["name"]] = warning
    return found


async def observe(
    client: KubeClient,
    metadata: Manifest,
    wanted: Iterable[Manifest],
    live: Iterable[Manifest],
    pods: list[Manifest],
) -> Observation:
    """What is seen of the resource with this metadata: each part that is wanted or there, and what its master says."""
    name, namespace = metadata["name"], metadata["namespace"]
    wishes, there = workloads_of(wanted), workloads_of(live)
    creating = [pod for pod in pods if is_creating(pod)]
    warnings = await read_warnings(client, namespace, creating)
    parts = {
        part: observe_part(part, wishes.get(part), there.get(part), pods_of(part, pods), warnings)
        for part in Component
        if part in wishes or part in there
    }
    note = find_store_note(pods)
    if Component.MASTER not in parts or parts[Component.MASTER].ready == 0:
        return Observation(parts, is_creating=bool(creating), store_note=note)
    host = f"{name_of_child(name, Component.MASTER)}.{namespace}.svc"
    segments = await list_segments(f"http://{host}:{PORT_MASTER_ADMIN}")
    shared = count_shared(segments or (), pods)
    return Observation(parts, segments, shared, bool(creating), store_note=note)
