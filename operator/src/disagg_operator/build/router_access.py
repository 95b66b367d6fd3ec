"""What the router may do in the cluster: read the pods of its own namespace, and nothing else."""

from disagg_operator.api.names import Component, child_name
from disagg_operator.build.inputs import Context, Manifest
from disagg_operator.build.objects import build_object


def build_router_service_account(context: Context) -> Manifest:
    """The router's identity. Its token is mounted by the one pod that needs it."""
    return build_object(
        context,
        "v1",
        "ServiceAccount",
        child_name(context.name, Component.ROUTER),
        Component.ROUTER,
        automountServiceAccountToken=False,
    )


def build_router_role(context: Context) -> Manifest:
    """The right to see pods come and go."""
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    name = child_name(context.name, Component.ROUTER)
    return build_object(context, "rbac.authorization.k8s.io/v1", "Role", name, Component.ROUTER, rules=rules)


def build_router_role_binding(context: Context) -> Manifest:
    """Gives that right to the router's identity."""
    name = child_name(context.name, Component.ROUTER)
    return build_object(
        context,
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        name,
        Component.ROUTER,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": context.namespace}],
    )
