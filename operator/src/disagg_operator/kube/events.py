"""Posts events about a resource. They are a courtesy: a refusal is logged and nothing more."""

import logging
from typing import Final

from disagg_operator.api.names import MANAGED_BY
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import EVENT, RESOURCE, Manifest
from disagg_operator.status.report import Event

_MAX_MESSAGE: Final = 1024
_log = logging.getLogger(__name__)


def build_event(metadata: Manifest, event: Event, now: str) -> Manifest:
    """A core event about the resource with this metadata. `now` is a time as Kubernetes writes it."""
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": RESOURCE.api_version,
            "kind": RESOURCE.kind,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_MAX_MESSAGE],
        "source": {"component": MANAGED_BY},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


async def post_event(client: KubeClient, metadata: Manifest, event: Event, now: str) -> None:
    """Post one event."""
    try:
        await client.create(EVENT, metadata["namespace"], build_event(metadata, event, now))
    except ApiError as error:
        _log.warning("event %s for %s was not posted: %s", event.reason, metadata["name"], error.message)
