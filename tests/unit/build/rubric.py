"""What a careful reviewer asks of a resource's children. A rule gets all of them and tells what is wrong."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from disagg_operator.api.names import GROUP
from unit.build.netpol import matches
from unit.build.pod_security import find_violations

Manifest = dict[str, Any]
Rule = Callable[[Sequence[Manifest]], Iterator[str]]

_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def templates(children: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod template with where it is."""
    for one in children:
        name = one["metadata"]["name"]
        if one["kind"] == "Deployment":
            yield name, one["spec"]["template"]
        if one["kind"] == "LeaderWorkerSet":
            group = one["spec"]["leaderWorkerTemplate"]
            yield name, group["leaderTemplate"]
            yield f"{name} (workers)", group["workerTemplate"]


# What users add by a template is theirs to judge.
GENERATED = {"admin-front", "discovery", "engine", "master", "metadata", "mooncake-config", "router"}


def containers(children: Sequence[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Every generated container with where it is and its pod's spec."""
    for where, template in templates(children):
        pod = template["spec"]
        for one in [*pod.get("initContainers", []), *pod["containers"]]:
            if one["name"] in GENERATED:
                yield f"{where}/{one['name']}", pod, one


def names_are_short_and_unique(children: Sequence[Manifest]) -> Iterator[str]:
    seen = set()
    for one in children:
        key = (one["kind"], one["metadata"]["name"])
        if key in seen or len(key[1]) > 63 or not _NAME.fullmatch(key[1]):
            yield f"{key}: twice, too long or not a name"
        seen.add(key)
        for label, value in one["metadata"]["labels"].items():
            if len(value) > 63 or not _LABEL.fullmatch(value):
                yield f"{key}: label {label}={value}"


def owned_by_the_resource(children: Sequence[Manifest]) -> Iterator[str]:
    for one in children:
        owners = one["metadata"].get("ownerReferences", [])
        if len(owners) != 1 or not (owners[0]["controller"] and owners[0]["blockOwnerDeletion"] and owners[0]["uid"]):
            yield f"{one['kind']} {one['metadata']['name']}: owners {owners}"
        if one["metadata"]["name"] == owners[0]["name"]:
            yield f"{one['kind']} carries the resource's bare name"


def labels_are_recommended(children: Sequence[Manifest]) -> Iterator[str]:
    wanted = {"name", "instance", "managed-by", "part-of"}
    for one in children:
        missing = {label for label in wanted if f"app.kubernetes.io/{label}" not in one["metadata"]["labels"]}
        if missing or f"{GROUP}/name" not in one["metadata"]["labels"]:
            yield f"{one['kind']} {one['metadata']['name']} lacks {missing}"


def nothing_is_null(children: Sequence[Manifest]) -> Iterator[str]:
    # An empty map says something in these places, and in no other.
    telling = ("emptyDir", "namespaceSelector")

    def walk(value: Any, path: str) -> Iterator[str]:
        if value is None or (value in ({}, []) and not path.endswith(telling)):
            yield f"{path}: {value!r}"
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, below in items:
            yield from walk(below, f"{path}.{key}")

    for one in children:
        yield from walk(one, f"{one['kind']} {one['metadata']['name']}")


def selectors_select(children: Sequence[Manifest]) -> Iterator[str]:
    labels = [template["metadata"]["labels"] for _, template in templates(children)]
    for one in children:
        where = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] == "Deployment":
            own = one["spec"]["template"]["metadata"]["labels"]
            if not matches(one["spec"]["selector"], own):
                yield f"{where} does not select its own pods"
            if sum(matches(one["spec"]["selector"], each) for each in labels) != 1:
                yield f"{where} selects pods of another part"
            if set(one["spec"]["selector"]["matchLabels"]) != {f"{GROUP}/name", f"{GROUP}/role"}:
                yield f"{where} selects by what may change"
        selector = one.get("spec", {}).get("selector") if one["kind"] in _SELECTING else None
        if one["kind"] == "NetworkPolicy":
            selector = one["spec"]["podSelector"]
        if selector is not None and not any(matches(selector, each) for each in labels):
            yield f"{where} selects no pod"


_SELECTING = {"PodDisruptionBudget", "PodMonitor"}


def services_reach_ports(children: Sequence[Manifest]) -> Iterator[str]:
    for one in (c for c in children if c["kind"] == "Service"):
        selected = [
            t
            for _, t in templates(children)
            if matches({"matchLabels": one["spec"]["selector"]}, t["metadata"]["labels"])
        ]
        if len(selected) != 1:
            yield f"Service {one['metadata']['name']} selects {len(selected)} kinds of pods"
        for template in selected:
            ports = {port["name"] for c in template["spec"]["containers"] for port in c.get("ports", [])}
            for port in one["spec"]["ports"]:
                if port["targetPort"] not in ports:
                    yield f"Service {one['metadata']['name']}: no port {port['targetPort']}"


def monitors_reach_ports(children: Sequence[Manifest]) -> Iterator[str]:
    for one in (c for c in children if c["kind"] == "PodMonitor"):
        for _, template in templates(children):
            if matches(one["spec"]["selector"], template["metadata"]["labels"]):
                ports = {port["name"] for c in template["spec"]["containers"] for port in c.get("ports", [])}
                if one["spec"]["podMetricsEndpoints"][0]["port"] not in ports:
                    yield f"PodMonitor {one['metadata']['name']} asks a port that is not there"


def only_the_router_faces_clients(children: Sequence[Manifest]) -> Iterator[str]:
    for one in (c for c in children if c["kind"] == "Service"):
        if one["spec"]["type"] != "ClusterIP" and one["metadata"]["labels"][f"{GROUP}/role"] != "router":
            yield f"Service {one['metadata']['name']} is {one['spec']['type']}"


def probes_ask_ports_that_are_there(children: Sequence[Manifest]) -> Iterator[str]:
    for where, pod, one in containers(children):
        own = {port["name"] for port in one.get("ports", [])}
        all_numbers = {port["containerPort"] for c in pod["containers"] for port in c.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            handler = one.get(probe, {})
            port = handler.get("httpGet", handler.get("tcpSocket", {})).get("port")
            if port is not None and port not in own | all_numbers:
                yield f"{where}: {probe} asks port {port}"


def every_server_is_probed(children: Sequence[Manifest]) -> Iterator[str]:
    for where, template in templates(children):
        if where.endswith("(workers)"):
            continue  # their leader answers for them
        if not any("readinessProbe" in c for c in template["spec"]["containers"]):
            yield f"{where}: nobody asks whether it is ready"


def images_are_fixed(children: Sequence[Manifest]) -> Iterator[str]:
    for where, _, one in containers(children):
        last = one["image"].rpartition("/")[2]
        if "@sha256:" not in one["image"] and (":" not in last or last.endswith(":latest")):
            yield f"{where}: image {one['image']}"


def requests_are_set(children: Sequence[Manifest]) -> Iterator[str]:
    for where, _, one in containers(children):
        resources = one["resources"]
        asked = {**resources.get("limits", {}), **resources.get("requests", {})}
        missing = {"cpu", "memory", "ephemeral-storage"} - asked.keys()
        if missing:
            yield f"{where}: no request for {missing}"


def pods_are_restricted(children: Sequence[Manifest]) -> Iterator[str]:
    for where, template in templates(children):
        for violation in find_violations(template["spec"]):
            yield f"{where}: {violation}"


def roots_are_read_only(children: Sequence[Manifest]) -> Iterator[str]:
    for where, pod, one in containers(children):
        if one["securityContext"].get("readOnlyRootFilesystem") is not True:
            yield f"{where}: writable root"
        mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
        if len(mounts) != len(one["volumeMounts"]):
            yield f"{where}: two volumes at one path"
        for name in set(mounts.values()) - {volume["name"] for volume in pod["volumes"]}:
            yield f"{where}: mounts {name}, which is no volume"


def only_the_router_has_a_token(children: Sequence[Manifest]) -> Iterator[str]:
    accounts = {c["metadata"]["name"] for c in children if c["kind"] == "ServiceAccount"}
    for where, template in templates(children):
        pod = template["spec"]
        if pod["automountServiceAccountToken"] and pod.get("serviceAccountName") not in accounts:
            yield f"{where}: a token of an account that is not made here"
        if pod["automountServiceAccountToken"] and not where.endswith("-router"):
            yield f"{where}: a token that it does not need"
        if pod["enableServiceLinks"] is not False:
            yield f"{where}: Services' addresses leak into its environment"


def rights_are_narrow(children: Sequence[Manifest]) -> Iterator[str]:
    for one in (c for c in children if c["kind"] == "Role"):
        for rule in one["rules"]:
            if rule["resources"] != ["pods"] or set(rule["verbs"]) - {"get", "list", "watch"}:
                yield f"Role {one['metadata']['name']}: {rule}"
    for one in (c for c in children if c["kind"] == "RoleBinding"):
        made = {(c["kind"], c["metadata"]["name"]) for c in children}
        if ("Role", one["roleRef"]["name"]) not in made or ("ServiceAccount", one["subjects"][0]["name"]) not in made:
            yield f"RoleBinding {one['metadata']['name']} binds what is not there"


def environment_is_clean(children: Sequence[Manifest]) -> Iterator[str]:
    for where, _, one in containers(children):
        names = [entry["name"] for entry in one.get("env", [])]
        for name in {name for name in names if names.count(name) > 1}:
            yield f"{where}: {name} is set twice"
        for entry in one.get("env", []):
            if re.search("PASSWORD|SECRET|TOKEN|API_KEY", entry["name"]) and entry.get("value"):
                yield f"{where}: {entry['name']} holds a secret"


def budgets_never_block(children: Sequence[Manifest]) -> Iterator[str]:
    counts = {c["metadata"]["name"]: c["spec"]["replicas"] for c in children if "replicas" in c.get("spec", {})}
    for one in (c for c in children if c["kind"] == "PodDisruptionBudget"):
        spec = one["spec"]
        if spec["maxUnavailable"] != 1 or spec["unhealthyPodEvictionPolicy"] != "AlwaysAllow":
            yield f"PodDisruptionBudget {one['metadata']['name']} can block a drain"
        if counts[one["metadata"]["name"]] < 2:
            yield f"{one['metadata']['name']} has a budget and one pod"


def grace_is_enough(children: Sequence[Manifest]) -> Iterator[str]:
    for where, pod, one in containers(children):
        sleep = one.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        args = one.get("args", [])
        timeout = int(args[args.index("--shutdown-timeout") + 1]) if "--shutdown-timeout" in args else 0
        if sleep + timeout >= pod["terminationGracePeriodSeconds"]:
            yield f"{where}: {sleep} s + {timeout} s do not fit into the grace period"


def config_map_is_json_without_secrets(children: Sequence[Manifest]) -> Iterator[str]:
    for one in (c for c in children if c["kind"] == "ConfigMap"):
        for key, text in one["data"].items():
            values = json.loads(text)
            for name in ("global_segment_size", "local_buffer_size"):
                if type(values[name]) is not int:
                    yield f"{key}: {name} is {values[name]!r}"
            if "local_hostname" in values or re.search(r"hf_|password|secret|token", text, re.IGNORECASE):
                yield f"{key}: {text}"


RULES: tuple[Rule, ...] = (
    names_are_short_and_unique,
    owned_by_the_resource,
    labels_are_recommended,
    nothing_is_null,
    selectors_select,
    services_reach_ports,
    monitors_reach_ports,
    only_the_router_faces_clients,
    probes_ask_ports_that_are_there,
    every_server_is_probed,
    images_are_fixed,
    requests_are_set,
    roots_are_read_only,
    only_the_router_has_a_token,
    rights_are_narrow,
    environment_is_clean,
    budgets_never_block,
    grace_is_enough,
    config_map_is_json_without_secrets,
)
