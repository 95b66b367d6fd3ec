"""Carries out a plan: applies, then prunes. Refusals are collected, so that one does not keep the others back.

Autoscalers that are no longer wished go before all else: two of them would move one count, and KEDA's webhook refuses a
ScaledObject for what a HorizontalPodAutoscaler moves.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from disagg_operator.api.names import SCALER_KIND, SEED_MANAGER
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import AUTOSCALERS, SCALER, Manifest
from disagg_operator.plan.changes import Changes, Key, object_key

_log = logging.getLogger(__name__)
_AUTOSCALERS: Final = frozenset(kind.kind for kind in AUTOSCALERS)
OnWrite = Callable[[str, str], None]


@dataclass(frozen=True)
class Refusal:
    """A child that the API server did not take."""

    child: str
    error: ApiError

    def __str__(self) -> str:
        """One sentence for a condition."""
        return f"{self.child}: {self.error.message}"


async def write_changes(
    client: KubeClient, changes: Changes, seeds: Mapping[str, int], on_write: OnWrite
) -> tuple[list[Manifest], tuple[Refusal, ...]]:
    """Returns the live children after it, and what was refused. Nothing but autoscalers is pruned after a refusal.

    `seeds` has the counts that new scalers begin with, by name.
    `on_write` is told verb and kind of each write. Raises ApiError on a conflict and when nobody answers.
    """
    live = dict(changes.live)
    refusals: list[Refusal] = []
    for manifest in changes.deletions:
        if manifest["kind"] in _AUTOSCALERS:
            refusals += await _prune(client, manifest, live, on_write)
    for manifest in changes.applies:
        key = object_key(manifest)
        uid = changes.live[key]["metadata"]["uid"] if key in changes.live else ""
        try:
            if key[0] == SCALER_KIND and not uid:
                uid = await _create_scaler(client, manifest, seeds[key[1]])
                on_write("create", key[0])
            live[key] = await client.apply(manifest, uid)
        except ApiError as error:
            if error.is_unreachable or error.is_conflict:
                raise
            refusals.append(Refusal("/".join(key), error))
            continue
        on_write("apply", key[0])
        _log.info("%s: applied %s %s", _owner(manifest), *key)
    for manifest in changes.deletions if not refusals else ():
        if object_key(manifest) in live:
            refusals += await _prune(client, manifest, live, on_write)
    return list(live.values()), tuple(refusals)


async def _prune(client: KubeClient, manifest: Manifest, live: dict[Key, Manifest], on_write: OnWrite) -> list[Refusal]:
    """Delete a child. Returns the refusal, if there is one."""
    key = object_key(manifest)
    try:
        await client.delete(manifest)
    except ApiError as error:
        if error.is_unreachable or error.is_conflict:
            raise
        # Whatever the code: it is admission that says no, and not for what is in the object.
        forbidden = ApiError(403, error.reason, error.message, error.retry_after)
        return [Refusal(f"deletion of {'/'.join(key)}", forbidden)]
    live.pop(key, None)
    on_write("delete", key[0])
    _log.info("%s: deleted %s %s", _owner(manifest), *key)
    return []


async def _create_scaler(client: KubeClient, manifest: Manifest, count: int) -> str:
    """Create a scaler with its first count, which is not this operator's from then on. Returns its UID."""
    body = {**manifest, "spec": {**manifest["spec"], "replicas": count}}
    created = await client.create(SCALER, manifest["metadata"]["namespace"], body, SEED_MANAGER)
    _log.info("%s: created %s %s with %d", _owner(manifest), SCALER_KIND, manifest["metadata"]["name"], count)
    return str(created["metadata"]["uid"])


def _owner(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{metadata['namespace']}/{metadata['ownerReferences'][0]['name']}"
