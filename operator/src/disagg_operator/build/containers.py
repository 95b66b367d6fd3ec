"""Pieces that containers and pods of every part share."""

from typing import Any, Final

from disagg_operator.api.base import Resources
from disagg_operator.api.names import Component, selector_labels
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import compact
from disagg_operator.build.security import build_pod_security

POD_IP_ENV: Final[Manifest] = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def dump_resources(resources: Resources) -> Manifest:
    """Resources as the user wrote them."""
    return compact(requests=resources.requests, limits=resources.limits, claims=resources.claims)


def fill_requests(written: Manifest, derived: dict[str, Any]) -> Manifest:
    """Resources with a request for each derived one that the user wrote nothing about.

    Where there is a limit but no request Kubernetes takes the limit, and so it is left.
    """
    requests = dict(written.get("requests") or {})
    limits = written.get("limits") or {}
    for name, amount in derived.items():
        if name not in requests and name not in limits:
            requests[name] = amount
    return {**written, "requests": requests} if requests else dict(written)


def build_pod_spec(context: Context, component: Component, **fields: Any) -> Manifest:
    """What pods of every part have in common, and the part's own fields.

    No service links: a Service called `vllm` would set VLLM_PORT in all pods of its namespace, and vLLM dies of that.
    """
    for kind in ("initContainers", "containers"):
        if kind in fields:
            # So that a pod's status, and with it the resource's, has the last line of a program that ended badly.
            fields[kind] = [{**each, "terminationMessagePolicy": "FallbackToLogsOnError"} for each in fields[kind]]
    secrets = context.spec.engine.image_pull_secrets or []
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": build_pod_security(),
        **compact(imagePullSecrets=[{"name": secret.name} for secret in secrets]),
        **compact(topologySpreadConstraints=_build_spread(context, component)),
        **fields,
    }


def _build_spread(context: Context, component: Component) -> list[Manifest]:
    """Replicas of one part go to different nodes where they can. Parts of one pod have nothing to spread."""
    if component in {Component.MASTER, Component.METADATA}:
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector_labels(context.name, component)},
        }
    ]


def scratch_volume(name: str) -> Manifest:
    """An empty volume for what a program writes although its root is read-only."""
    return {"name": name, "emptyDir": {}}
