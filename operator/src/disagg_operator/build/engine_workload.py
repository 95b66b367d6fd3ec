"""The workload of a role: a Deployment, or a LeaderWorkerSet where one replica spans nodes."""

from typing import Any

from disagg_operator.api.engine import RoleSpec
from disagg_operator.api.names import Component, child_name, selector_labels
from disagg_operator.build.engine_pod import build_worker_template
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object
from disagg_operator.build.roles import role_spec, spans_nodes


def build_engine_workload(context: Context, role: Component, template: Manifest) -> Manifest:
    """The workload that keeps a role's pods."""
    if spans_nodes(role_spec(context.spec, role)):
        return _build_leader_worker_set(context, role, template)
    return _build_deployment(context, role, template)


def _build_deployment(context: Context, role: Component, template: Manifest) -> Manifest:
    wish = role_spec(context.spec, role)
    spec: dict[str, Any] = {
        "replicas": context.counts.of(role),
        "selector": {"matchLabels": selector_labels(context.name, role)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _build_rollout(wish)},
        "progressDeadlineSeconds": context.spec.progress_deadline_seconds,
        "revisionHistoryLimit": context.spec.revision_history_limit,
        "template": template,
    }
    return build_object(context, "apps/v1", "Deployment", child_name(context.name, role), role, spec=spec)


def _build_leader_worker_set(context: Context, role: Component, template: Manifest) -> Manifest:
    wish = role_spec(context.spec, role)
    group = {
        "size": wish.parallelism.nodes,
        # Ranks of one replica hold one another's state: half a replica can do nothing.
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": template,
        "workerTemplate": build_worker_template(template, role),
    }
    spec = {
        "replicas": context.counts.of(role),
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": _build_rollout(wish)},
        "leaderWorkerTemplate": group,
    }
    name = child_name(context.name, role)
    return build_object(context, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, role, spec=spec)


def _build_rollout(wish: RoleSpec) -> Manifest:
    return {"maxSurge": wish.rollout.max_surge, "maxUnavailable": wish.rollout.max_unavailable}
