"""Judges partial pod templates: what may not be changed in them, and whether they can be merged at all.

Nothing else is judged: keys that the operator does not know pass through to the API server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mooncake_store_connector.problems import Problem

from disagg_operator.api.names import (
    GROUP,
    LABEL_FOREIGN_ROLE,
    PORT_HTTP,
    PORT_MASTER_ADMIN,
    PORT_MASTER_RPC,
    PORT_ROUTER_ADMIN,
)
from disagg_operator.build.master import PORT_INNER_ADMIN
from disagg_operator.build.overlay import DELETE, MERGE_KEYS
from disagg_operator.build.router import PORT_DISCOVERY, PORT_DISCOVERY_METRICS

_OWN_LABELS: Final = (
    f"{GROUP}/",
    LABEL_FOREIGN_ROLE,
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/component",
)


@dataclass(frozen=True)
class TemplateRules:
    """What one part's template may not touch.

    `containers` maps the generated containers to the ports that they listen on; `instead` maps fields of those
    containers to where they are set; `pod_fields` does the same for fields of the pod; `volumes` may not be replaced.
    """

    containers: Mapping[str, tuple[int, ...]]
    instead: Mapping[str, str]
    pod_fields: Mapping[str, str]
    init_containers: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


_POD_FIELDS: Final = {"enableServiceLinks": "remove it: variables of Services would break the programs inside"}


def engine_rules(role: str) -> TemplateRules:
    """Rules of a role's template."""
    return TemplateRules(
        containers={"engine": (PORT_HTTP,)},
        instead={
            "command": f"remove it; flags go into spec.{role}.args, and the operator starts `vllm serve` itself",
            "args": f"write flags into spec.{role}.args",
            "image": f"set spec.{role}.image",
        },
        pod_fields={
            **_POD_FIELDS,
            "hostNetwork": "set spec.kvStore.rdma.hostNetwork, which declares the ports too",
            "terminationGracePeriodSeconds": f"set spec.{role}.terminationGracePeriodSeconds",
        },
        init_containers=("mooncake-config",),
        volumes=("config", "config-template"),
    )


ROUTER_RULES: Final = TemplateRules(
    containers={"router": (PORT_HTTP, PORT_ROUTER_ADMIN), "discovery": (PORT_DISCOVERY, PORT_DISCOVERY_METRICS)},
    instead={
        "command": "remove it: the router's parts are started with flags that fit one another",
        "args": "remove it: the router's parts are started with flags that fit one another",
        "image": "set spec.router.image",
    },
    pod_fields={
        **_POD_FIELDS,
        "serviceAccountName": "remove it: the router's own account has the one right that it needs",
    },
)
MASTER_RULES: Final = TemplateRules(
    containers={"master": (PORT_MASTER_RPC,), "admin-front": (PORT_MASTER_ADMIN, PORT_INNER_ADMIN)},
    instead={
        "command": "remove it: the master's admin port must stay shut in its pod",
        "args": "set the fields of spec.kvStore.master",
    },
    pod_fields=_POD_FIELDS,
)


def find_template_problems(path: str, template: Any, rules: TemplateRules) -> list[Problem]:
    """What is wrong with a partial pod template at `path`."""
    if template is None:
        return []
    problems = list(_find_shape_problems(path, template))
    if problems:
        return problems
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    return [
        *_find_label_problems(f"{path}.metadata", metadata),
        *_find_pod_problems(f"{path}.spec", spec, rules),
        *_find_container_problems(f"{path}.spec", spec, rules),
        *_find_port_problems(f"{path}.spec", spec, rules),
    ]


def list_overlay_env(template: Any, container: str) -> list[dict[str, Any]]:
    """Environment that a well-formed template gives one container."""
    entries = ((template or {}).get("spec") or {}).get("containers") or []
    return [item for entry in entries if entry.get("name") == container for item in entry.get("env") or []]


def _find_shape_problems(path: str, template: Any) -> Iterator[Problem]:
    if not isinstance(template, dict):
        yield Problem(path, f"found a {type(template).__name__}", "write a pod template: metadata and spec")
        return
    for key in template.keys() - {"metadata", "spec"}:
        yield Problem(f"{path}.{key}", "not part of a pod template", "write it under metadata or spec")
    for key in ("metadata", "spec"):
        if not isinstance(template.get(key, {}), dict):
            yield Problem(f"{path}.{key}", f"found a {type(template[key]).__name__}", "write a map")
    for key in ("labels", "annotations"):
        metadata = template.get("metadata", {})
        value = metadata.get(key, {}) if isinstance(metadata, dict) else {}
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            yield Problem(f"{path}.metadata.{key}", "found something else than strings", "write a map of strings")
    if isinstance(template.get("spec"), dict):
        yield from _find_list_shape_problems(f"{path}.spec", template["spec"])


def _find_list_shape_problems(path: str, owner: dict[str, Any]) -> Iterator[Problem]:
    """Lists that merge by a name need entries that have one."""
    for key, names in MERGE_KEYS.items():
        if key not in owner:
            continue
        entries = owner[key]
        if not isinstance(entries, list):
            yield Problem(f"{path}.{key}", f"found a {type(entries).__name__}", "write a list")
            continue
        for index, entry in enumerate(entries):
            where = f"{path}.{key}[{index}]"
            if not isinstance(entry, dict) or names[0] not in entry:
                yield Problem(where, f"an entry without {names[0]}", f"add {names[0]}: entries are merged by it")
            elif key in {"containers", "initContainers"}:
                yield from _find_list_shape_problems(where, entry)


def _find_label_problems(path: str, metadata: dict[str, Any]) -> Iterator[Problem]:
    for field in ("labels", "annotations"):
        for key in metadata.get(field, {}):
            if key.startswith(_OWN_LABELS):
                remedy = "remove it: Services, selectors and revisions rest on it"
                yield Problem(f"{path}.{field}", f"found {key}, which the operator owns", remedy)


def _find_pod_problems(path: str, spec: dict[str, Any], rules: TemplateRules) -> Iterator[Problem]:
    for field, remedy in rules.pod_fields.items():
        if field in spec:
            yield Problem(f"{path}.{field}", f"found {spec[field]!r}, which the operator owns", remedy)
    if spec.get("restartPolicy", "Always") != "Always":
        yield Problem(f"{path}.restartPolicy", f"found {spec['restartPolicy']!r}", "remove it: it must be Always")
    for field, names in (
        ("containers", tuple(rules.containers)),
        ("initContainers", rules.init_containers),
        ("volumes", rules.volumes),
    ):
        if field in spec and spec[field] is None:
            yield Problem(f"{path}.{field}", "found null", "remove it: the generated ones are needed")
        for entry in spec.get(field) or []:
            is_change = field == "volumes" or entry.get(DELETE) == "delete"
            if entry["name"] in names and is_change:
                yield Problem(f"{path}.{field}[{entry['name']}]", "cannot be replaced or removed", "remove it")


def _find_container_problems(path: str, spec: dict[str, Any], rules: TemplateRules) -> Iterator[Problem]:
    for field, generated in (("containers", tuple(rules.containers)), ("initContainers", rules.init_containers)):
        for entry in spec.get(field) or []:
            where = f"{path}.{field}[{entry['name']}]"
            if entry["name"] in generated:
                for key, remedy in rules.instead.items():
                    if key in entry:
                        yield Problem(f"{where}.{key}", "the operator owns it", remedy)
            elif "image" not in entry and entry.get(DELETE) != "delete":
                known = ", ".join(generated) or "none"
                remedy = f"add image, or use the name of a generated container ({known})"
                yield Problem(where, "a container of your own without an image", remedy)


def _find_port_problems(path: str, spec: dict[str, Any], rules: TemplateRules) -> Iterator[Problem]:
    """All containers of a pod share its ports."""
    taken = {(port, "TCP"): name for name, ports in rules.containers.items() for port in ports}
    for entry in spec.get("containers") or []:
        for port in entry.get("ports") or []:
            number = port["containerPort"]
            holder = taken.setdefault((number, port.get("protocol", "TCP")), entry["name"])
            if holder != entry["name"]:
                remedy = "use another port: containers of one pod share its ports"
                yield Problem(f"{path}.containers[{entry['name']}].ports", f"{number} is {holder}'s port", remedy)
