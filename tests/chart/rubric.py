"""What a careful reviewer asks of manifests. A rule gets all manifests of a release and tells what is wrong."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Manifest = dict[str, Any]
Rule = Callable[[Sequence[Manifest]], Iterator[str]]

WORKLOADS = {"Deployment", "StatefulSet", "DaemonSet", "Job"}
RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
                      "secret"}  # fmt: skip
SENSITIVE = ("secrets", "pods/exec", "nodes", "serviceaccounts/token")


def workloads(manifests: Sequence[Manifest]) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in WORKLOADS]


def pod_spec(workload: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def containers(workload: Manifest) -> list[dict[str, Any]]:
    spec = pod_spec(workload)
    return [*spec.get("initContainers", []), *spec["containers"]]


def each_container(manifests: Sequence[Manifest]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Where it is, its pod's spec, and the container."""
    for workload in workloads(manifests):
        for container in containers(workload):
            yield f"{workload['metadata']['name']}/{container['name']}", pod_spec(workload), container


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def pods_selected(manifests: Sequence[Manifest], selector: dict[str, str]) -> list[Manifest]:
    return [one for one in workloads(manifests) if selects(selector, one["spec"]["template"]["metadata"]["labels"])]


def has_recommended_labels(manifests: Sequence[Manifest]) -> Iterator[str]:
    for one in manifests:
        for label in ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by"):
            if label not in one["metadata"].get("labels", {}):
                yield f"{one['kind']} {one['metadata']['name']} lacks {label}"


def selector_matches_template(manifests: Sequence[Manifest]) -> Iterator[str]:
    for workload in workloads(manifests):
        if not selects(workload["spec"]["selector"]["matchLabels"], workload["spec"]["template"]["metadata"]["labels"]):
            yield f"{workload['metadata']['name']} does not select its own pods"


def selectors_do_not_move(manifests: Sequence[Manifest]) -> Iterator[str]:
    """A version in a selector would make every upgrade fail: selectors are immutable."""
    for workload in workloads(manifests):
        for label in workload["spec"]["selector"]["matchLabels"]:
            if "version" in label or "chart" in label:
                yield f"{workload['metadata']['name']} selects by {label}"


def services_have_pods_and_ports(manifests: Sequence[Manifest]) -> Iterator[str]:
    for service in (one for one in manifests if one["kind"] == "Service"):
        name = service["metadata"]["name"]
        pods = pods_selected(manifests, service["spec"]["selector"])
        if not pods:
            yield f"Service {name} selects no pod"
        for workload in pods:
            ports = {port["name"] for container in containers(workload) for port in container.get("ports", [])}
            for port in service["spec"]["ports"]:
                if port["targetPort"] not in ports:
                    yield f"Service {name}: no port {port['targetPort']} in {workload['metadata']['name']}"


def policies_and_budgets_have_pods(manifests: Sequence[Manifest]) -> Iterator[str]:
    for one in manifests:
        if one["kind"] == "NetworkPolicy" and not pods_selected(manifests, one["spec"]["podSelector"]["matchLabels"]):
            yield f"NetworkPolicy {one['metadata']['name']} selects no pod"
        if one["kind"] == "PodDisruptionBudget":
            if not pods_selected(manifests, one["spec"]["selector"]["matchLabels"]):
                yield f"PodDisruptionBudget {one['metadata']['name']} selects no pod"
            if one["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow" or one["spec"].get("maxUnavailable") != 1:
                yield f"PodDisruptionBudget {one['metadata']['name']} can block a drain"


def no_budget_for_a_single_pod(manifests: Sequence[Manifest]) -> Iterator[str]:
    for budget in (one for one in manifests if one["kind"] == "PodDisruptionBudget"):
        for workload in pods_selected(manifests, budget["spec"]["selector"]["matchLabels"]):
            if workload["spec"]["replicas"] < 2:
                yield f"{workload['metadata']['name']} has a budget and one pod"


def probes_name_ports(manifests: Sequence[Manifest]) -> Iterator[str]:
    for where, _, container in each_container(manifests):
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("livenessProbe", "readinessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if port not in ports:
                yield f"{where}: {probe} asks port {port}, which is not declared"


def images_are_named_and_fixed(manifests: Sequence[Manifest]) -> Iterator[str]:
    for where, _, container in each_container(manifests):
        image = container["image"]
        last = image.rpartition("/")[2]
        if "@sha256:" not in image and (":" not in last or last.endswith(":latest")):
            yield f"{where}: image {image!r} is not fixed by tag or digest"


def resources_are_set(manifests: Sequence[Manifest]) -> Iterator[str]:
    for where, _, container in each_container(manifests):
        resources = container.get("resources", {})
        for kind, name in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
            if name not in resources.get(kind, {}):
                yield f"{where}: no {kind}.{name}"


def meets_restricted(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Pod Security "restricted", and a read-only root besides."""
    for workload in workloads(manifests):
        spec = pod_spec(workload)
        for field in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(field):
                yield f"{workload['metadata']['name']}: {field}"
        for volume in spec.get("volumes", []):
            for kind in set(volume) - {"name"} - RESTRICTED_VOLUMES:
                yield f"{workload['metadata']['name']}: volume of kind {kind}"
    for where, spec, container in each_container(manifests):
        context = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        wanted = {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            "capabilities": {"drop": ["ALL"]},
        }
        for field, value in wanted.items():
            if context.get(field) != value:
                yield f"{where}: {field} is {context.get(field)!r}, not {value!r}"
        if context.get("runAsUser") == 0 or any(port.get("hostPort") for port in container.get("ports", [])):
            yield f"{where}: root or a host port"


def environment_is_clean(manifests: Sequence[Manifest]) -> Iterator[str]:
    for where, spec, container in each_container(manifests):
        names = [one["name"] for one in container.get("env", [])]
        for name in {one for one in names if names.count(one) > 1}:
            yield f"{where}: {name} is set twice"
        for one in container.get("env", []):
            if any(word in one["name"].lower() for word in ("password", "secret", "token")) and one.get("value"):
                yield f"{where}: {one['name']} holds a secret in plain text"
        if spec.get("enableServiceLinks") is not False:
            yield f"{where}: Services' addresses leak into its environment"


def writes_only_where_mounted(manifests: Sequence[Manifest]) -> Iterator[str]:
    for where, spec, container in each_container(manifests):
        volumes = {one["name"] for one in spec.get("volumes", [])}
        mounts = {one["mountPath"]: one["name"] for one in container.get("volumeMounts", [])}
        if "/tmp" not in mounts:
            yield f"{where}: a read-only root and no /tmp"
        for name in set(mounts.values()) - volumes:
            yield f"{where}: mounts {name}, which is no volume"


def pods_spread(manifests: Sequence[Manifest]) -> Iterator[str]:
    for workload in workloads(manifests):
        spec = pod_spec(workload)
        if workload["spec"]["replicas"] > 1 and not (spec.get("affinity") or spec.get("topologySpreadConstraints")):
            yield f"{workload['metadata']['name']}: all its pods may be on one node"


def service_accounts_exist(manifests: Sequence[Manifest]) -> Iterator[str]:
    made = {one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"}
    for workload in workloads(manifests):
        name = pod_spec(workload)["serviceAccountName"]
        if name not in made:
            yield f"{workload['metadata']['name']}: service account {name} is not in the release"


def bindings_fit(manifests: Sequence[Manifest]) -> Iterator[str]:
    roles = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in manifests}
    for one in manifests:
        if one["kind"] not in {"RoleBinding", "ClusterRoleBinding"}:
            continue
        reference = one["roleRef"]
        namespace = one["metadata"].get("namespace") if reference["kind"] == "Role" else None
        if (reference["kind"], namespace, reference["name"]) not in roles:
            yield f"{one['kind']} {one['metadata']['name']}: no {reference['kind']} {reference['name']}"


def rights_are_narrow(manifests: Sequence[Manifest]) -> Iterator[str]:
    for role in (one for one in manifests if one["kind"] in {"Role", "ClusterRole"}):
        for right in role["rules"]:
            words = {*right.get("apiGroups", []), *right.get("resources", []), *right["verbs"]}
            for word in words & {"*", "escalate", "bind", "impersonate", *SENSITIVE}:
                yield f"{role['kind']} {role['metadata']['name']}: {word}"


RULES: tuple[Rule, ...] = (
    has_recommended_labels,
    selector_matches_template,
    selectors_do_not_move,
    services_have_pods_and_ports,
    policies_and_budgets_have_pods,
    no_budget_for_a_single_pod,
    probes_name_ports,
    images_are_named_and_fixed,
    resources_are_set,
    meets_restricted,
    environment_is_clean,
    writes_only_where_mounted,
    pods_spread,
    service_accounts_exist,
    bindings_fit,
    rights_are_narrow,
)
