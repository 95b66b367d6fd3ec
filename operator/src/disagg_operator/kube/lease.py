"""Leader election by a Lease: one replica of the operator acts, the others wait.

A holder that cannot renew in time ends its process: what it was doing must not go on beside a new leader's work.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import LEASE, Manifest

LEASE_SECONDS: Final = 15
RENEW_SECONDS: Final = 5
_FORMAT: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """Who wants to lead: the pod's name, and where the Lease is."""

    identity: str
    namespace: str
    name: str


def is_free(lease: Manifest, identity: str, now: datetime) -> bool:
    """Whether `identity` may take or keep this Lease."""
    spec = lease.get("spec", {})
    if not spec.get("holderIdentity") or spec["holderIdentity"] == identity:
        return True
    renewed = datetime.strptime(spec["renewTime"], _FORMAT).replace(tzinfo=UTC)
    return (now - renewed).total_seconds() > float(spec.get("leaseDurationSeconds", LEASE_SECONDS))


def renewed_spec(lease: Manifest, identity: str, now: datetime) -> Manifest:
    """The spec that takes or keeps a Lease."""
    old = lease.get("spec", {})
    stamp = now.strftime(_FORMAT)
    is_taken = old.get("holderIdentity") != identity
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": stamp,
        "acquireTime": stamp if is_taken else old.get("acquireTime", stamp),
        "leaseTransitions": old.get("leaseTransitions", 0) + (1 if is_taken and old else 0),
    }


async def try_hold(client: KubeClient, candidate: Candidate) -> bool:
    """Take or renew the Lease once. False when another one holds it. Raises ApiError when nothing is known."""
    now = datetime.now(UTC)
    lease = await client.get(LEASE, candidate.namespace, candidate.name)
    try:
        if lease is None:
            body = {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.kind,
                "metadata": {"name": candidate.name, "namespace": candidate.namespace},
                "spec": renewed_spec({}, candidate.identity, now),
            }
            await client.create(LEASE, candidate.namespace, body)
            return True
        if not is_free(lease, candidate.identity, now):
            return False
        lease["spec"] = renewed_spec(lease, candidate.identity, now)
        await client.replace(LEASE, candidate.namespace, candidate.name, lease)
    except ApiError as error:
        if error.is_conflict:
            return False
        raise
    return True


async def acquire(client: KubeClient, candidate: Candidate) -> None:
    """Wait until this process leads."""
    _log.info("waiting to lead: Lease %s/%s", candidate.namespace, candidate.name)
    while True:
        try:
            if await try_hold(client, candidate):
                _log.info("leading as %s", candidate.identity)
                return
        except ApiError as error:
            _log.warning("cannot read the Lease: %s", error)
        await asyncio.sleep(RENEW_SECONDS)


async def hold(client: KubeClient, candidate: Candidate) -> None:
    """Renew until leadership is lost; then return."""
    loop = asyncio.get_running_loop()
    renewed = loop.time()
    while loop.time() - renewed < LEASE_SECONDS - RENEW_SECONDS:
        await asyncio.sleep(RENEW_SECONDS)
        try:
            if not await try_hold(client, candidate):
                break
            renewed = loop.time()
        except ApiError as error:
            _log.warning("cannot renew the Lease: %s", error)
    _log.error("leadership is lost")


async def release(client: KubeClient, candidate: Candidate) -> None:
    """Let the Lease go at a clean end, so that the next leader need not wait."""
    lease = await client.get(LEASE, candidate.namespace, candidate.name)
    if lease is not None and lease.get("spec", {}).get("holderIdentity") == candidate.identity:
        lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        await client.replace(LEASE, candidate.namespace, candidate.name, lease)
