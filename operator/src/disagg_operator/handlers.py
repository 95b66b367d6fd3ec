"""The only place that knows kopf: it watches, and hands on the key of the resource concerned.

kopf's change-tracking handlers are not used: they write annotations and finalizers on users' objects, and lose a
failed event. docs/adr/0001-level-based-reconcile.md.
"""

import asyncio
import os
from typing import Any, Final, Protocol

import kopf

from disagg_operator.api.names import GROUP, LABEL_MANAGED_BY, LABEL_NAME, MANAGED_BY, PLURAL, VERSION
from disagg_operator.build.inputs import ClusterFacts
from disagg_operator.kube.kinds import POD, SCALER, Kind
from disagg_operator.kube.reading import list_autoscalers, list_kinds
from disagg_operator.reconcile import Key

_SELECTOR: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY}"


class Listener(Protocol):
    """Who is told what the watches bring."""

    def resource_changed(self, key: Key, version: str, generation: int) -> None:
        """A resource is there in this resourceVersion and generation."""

    def resource_gone(self, key: Key) -> None:
        """A resource is there no more."""

    def child_changed(self, key: Key) -> None:
        """A child or a pod of a resource came, changed or went."""


class _NothingTold(kopf.DiffBaseStorage):
    """Compares nothing. kopf would copy every object of every event thrice for handlers that are not used here."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NothingDone(kopf.ProgressStorage):
    """Remembers nothing of handlers, for the same reason."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


def build_registry(listener: Listener, kinds: list[Kind]) -> kopf.OperatorRegistry:
    """Handlers that turn every event into a key."""
    registry = kopf.OperatorRegistry()

    async def log_in(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        # Named here, so that it does not depend on which client libraries are installed.
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            return kopf.login_with_service_account(settings=settings)
        return await asyncio.to_thread(kopf.login_with_kubeconfig, settings=settings)

    async def resource_changed(
        namespace: str | None, name: str | None, type: str | None, meta: kopf.Meta, **_: Any
    ) -> None:
        key = Key(namespace or "", name or "")
        if type == "DELETED":
            listener.resource_gone(key)
        else:
            listener.resource_changed(key, str(meta.get("resourceVersion", "")), int(meta.get("generation", 0)))

    async def child_changed(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        owner = labels.get(LABEL_NAME)
        if owner:
            listener.child_changed(Key(namespace or "", owner))

    kopf.on.login(registry=registry, retries=3, backoff=1.0)(log_in)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(resource_changed)
    for group, version, plural in map(_selector_of, kinds):
        kopf.on.event(group, version, plural, labels={LABEL_MANAGED_BY: MANAGED_BY}, registry=registry)(child_changed)
    return registry


def _selector_of(kind: Kind) -> tuple[str, str, str]:
    """Group, version and plural: how kopf names a kind."""
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural


def build_settings(kinds: list[Kind], *, is_clusterwide: bool) -> kopf.OperatorSettings:
    """Settings of kopf: no posting, no peering, watches that notice when they are dead."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    # The API server sends a bookmark each minute, so a stream that brings nothing for longer is dead.
    settings.watching.inactivity_timeout = 70
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    # kopf holds what it has listed, and each object for as long as its worker is idle: thousands, when it starts.
    settings.watching.chunk_size = 100
    settings.queueing.idle_timeout = 0.1
    settings.queueing.worker_limit = None
    settings.persistence.diffbase_storage = _NothingTold()
    settings.persistence.progress_storage = _NothingDone()
    # Without cluster-wide rights kopf would ask for CRDs and namespaces for ever.
    settings.scanning.disabled = not is_clusterwide
    for kind in kinds:
        settings.watching.label_selectors[_selector_of(kind)] = _SELECTOR
    return settings


async def watch(listener: Listener, facts: ClusterFacts, namespaces: tuple[str, ...]) -> None:
    """Watch until cancelled, or until kopf gets a signal. Without namespaces: all of them."""
    # Scalers too where their CRD is not there yet: kopf finds them when it comes, if it may look for CRDs.
    kinds = [*dict.fromkeys([*list_kinds(facts), SCALER, *list_autoscalers(facts), POD])]
    await kopf.operator(
        registry=build_registry(listener, kinds),
        settings=build_settings(kinds, is_clusterwide=not namespaces),
        clusterwide=not namespaces,
        namespaces=namespaces,
        standalone=True,
    )
