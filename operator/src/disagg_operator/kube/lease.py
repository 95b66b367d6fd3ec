"""Leader election by a Lease: one replica of the operator acts, the others wait.

A holder that cannot renew in time ends its process: what it was doing must not go on beside a new leader's work. Each
write asks `is_sure` first: a process that stood still (stopped, swapped out, its machine paused) would otherwise go on
where it was before it looks at any clock.
"""

import asyncio
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import LEASE, Manifest

# A Lease is free when it was not renewed for so long. Its holder gives up earlier than that, by its own clock.
LEASE_SECONDS: Final = 15
GIVE_UP_SECONDS: Final = 10
RENEW_SECONDS: Final = 3
_FORMAT: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """Who wants to lead: the pod's name, and where the Lease is."""

    identity: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Sight:
    """A Lease's last renewal as one process saw it: whose and which, and when by the clock of this process."""

    holder: str
    renewal: str
    since: float


def see(lease: Manifest, before: Sight | None, now: float) -> Sight:
    """What is seen now. The time stays while nothing was renewed: no two machines' clocks are compared."""
    spec = lease.get("spec", {})
    holder, renewal = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
    if before is not None and (before.holder, before.renewal) == (holder, renewal):
        return before
    return Sight(holder, renewal, now)


def is_free(lease: Manifest, identity: str, sight: Sight, now: float) -> bool:
    """Whether `identity` may take or keep this Lease."""
    if sight.holder in ("", identity):
        return True
    return now - sight.since > float(lease["spec"].get("leaseDurationSeconds", LEASE_SECONDS))


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


class Election:
    """One candidate's part in the election."""

    def __init__(self, client: KubeClient, candidate: Candidate) -> None:
        self._client = client
        self._candidate = candidate
        self._sight: Sight | None = None
        self._renewed = -math.inf

    def is_sure(self) -> bool:
        """Whether nobody else can lead yet, by this process's clock."""
        return asyncio.get_running_loop().time() < self._renewed + GIVE_UP_SECONDS

    async def acquire(self) -> None:
        """Wait until this process leads."""
        me, loop = self._candidate, asyncio.get_running_loop()
        _log.info("waiting to lead: Lease %s/%s", me.namespace, me.name)
        while True:
            try:
                # The renewal is as old as the moment before it was asked for.
                asked = loop.time()
                if await self._try_hold():
                    self._renewed = asked
                    _log.info("leading as %s", me.identity)
                    return
            except ApiError as error:
                _log.warning("cannot take the Lease: %s", error)
            await asyncio.sleep(RENEW_SECONDS)

    async def hold(self) -> None:
        """Renew until leadership is lost or may be; then return."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                asked = loop.time()
                async with asyncio.timeout_at(self._renewed + GIVE_UP_SECONDS):
                    if not await self._try_hold():
                        _log.error("the Lease is another one's by now")
                        return
                self._renewed = asked
            except ApiError as error:
                _log.warning("cannot renew the Lease: %s", error)
            except TimeoutError:
                _log.error("the Lease could not be renewed for %d s", GIVE_UP_SECONDS)
                return

    async def release(self) -> None:
        """Let the Lease go at a clean end, so that the next leader need not wait. Raises ApiError."""
        me = self._candidate
        lease = await self._client.get(LEASE, me.namespace, me.name)
        if lease is not None and lease.get("spec", {}).get("holderIdentity") == me.identity:
            lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.replace(LEASE, me.namespace, me.name, lease)

    async def _try_hold(self) -> bool:
        """Take or renew the Lease once. False when another one holds it. Raises ApiError when nothing is known."""
        me, now = self._candidate, datetime.now(UTC)
        lease = await self._client.get(LEASE, me.namespace, me.name)
        clock = asyncio.get_running_loop().time()
        try:
            if lease is None:
                if self._sight is not None and not is_free({"spec": {}}, me.identity, self._sight, clock):
                    # Somebody deleted it. Its holder is at work all the same, and makes it anew.
                    return False
                body = {
                    "apiVersion": LEASE.api_version,
                    "kind": LEASE.kind,
                    "metadata": {"name": me.name, "namespace": me.namespace},
                    "spec": renewed_spec({}, me.identity, now),
                }
                await self._client.create(LEASE, me.namespace, body)
                return True
            self._sight = see(lease, self._sight, clock)
            if not is_free(lease, me.identity, self._sight, clock):
                return False
            lease["spec"] = renewed_spec(lease, me.identity, now)
            await self._client.replace(LEASE, me.namespace, me.name, lease)
        except ApiError as error:
            if error.is_conflict:
                return False
            raise
        return True
