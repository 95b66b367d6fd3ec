"""The only place that knows kopf: it watches, and puts the key of the resource concerned into the queue.

kopf's change-tracking handlers are not used: they write annotations and finalizers on users' objects, and lose a
failed event. docs/adr/0001-level-based-reconcile.md.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from disagg_operator.api.names import GROUP, LABEL_MANAGED_BY, LABEL_NAME, MANAGED_BY, PLURAL, VERSION
from disagg_operator.reconcile import Key

Add = Callable[[Key], Awaitable[None]]
_WATCHED_CHILDREN = (
    ("apps", "v1", "deployments"),
    ("", "v1", "configmaps"),
    ("", "v1", "services"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "pods"),
    ("rbac.authorization.k8s.io", "v1", "roles"),
    ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("apps", "v1", "controllerrevisions"),
)


def build_registry(add: Add) -> kopf.OperatorRegistry:
    """Handlers that turn every event into a key."""
    registry = kopf.OperatorRegistry()

    async def log_in(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        # Named here, so that it does not depend on which client libraries are installed.
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            return kopf.login_with_service_account(settings=settings)
        return await asyncio.to_thread(kopf.login_with_kubeconfig, settings=settings)

    async def resource_changed(namespace: str | None, name: str | None, **_: Any) -> None:
        await add(Key(namespace or "", name or ""))

    async def child_changed(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        owner = labels.get(LABEL_NAME)
        if owner:
            await add(Key(namespace or "", owner))

    kopf.on.login(registry=registry, retries=3, backoff=1.0)(log_in)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(resource_changed)
    for group, version, plural in _WATCHED_CHILDREN:
        kopf.on.event(group, version, plural, labels={LABEL_MANAGED_BY: MANAGED_BY}, registry=registry)(child_changed)
    return registry


def build_settings(*, is_clusterwide: bool) -> kopf.OperatorSettings:
    """Settings of kopf: no posting, no peering, watches that notice when they are dead."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.queueing.worker_limit = None
    # Without cluster-wide rights kopf would ask for CRDs and namespaces for ever.
    settings.scanning.disabled = not is_clusterwide
    for group, version, plural in _WATCHED_CHILDREN:
        selector = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
        settings.watching.label_selectors[group, version, plural] = selector
    return settings


async def watch(add: Add, namespaces: tuple[str, ...], ready: asyncio.Event, stop: asyncio.Event) -> None:
    """Watch until stopped. `ready` is set when the watches are there."""
    await kopf.operator(
        registry=build_registry(add),
        settings=build_settings(is_clusterwide=not namespaces),
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
        stop_flag=stop,
        standalone=True,
    )
