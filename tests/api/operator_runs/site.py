"""The operator as a process of its own, with the rights of its table and no more, and a hand for what it made.

No kubelet and no Deployment controller run: `Site.serve` writes the status that they would, so each state can be had.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from api.rest import RESOURCES, Rest
from cluster.apiserver import ApiServer
from disagg_operator.kube import rights
from router.programs import Program, eventually, free_port

Json = dict[str, Any]
IMAGES = {"store": "store:1", "router": "router:1", "engine-image-cpu": "engine-cpu:1", "engine-image-cuda": "engine:1"}
ENGINES = ("prefill", "decode")
PARTS = ("prefill", "decode", "master", "router")
KINDS = {
    "deployments": "/apis/apps/v1",
    "controllerrevisions": "/apis/apps/v1",
    "configmaps": "/api/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "disaggregatedinferencescalers": "/apis/inference.disagg.io/v1alpha1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
}
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


@dataclass
class Operator:
    """One running operator."""

    program: Program
    user: str
    metrics_port: int
    health_port: int

    @property
    def log(self) -> str:
        return self.program.log.read_text()


@dataclass
class Site:
    """One namespace, and the operators that may work in it."""

    server: ApiServer
    rest: Rest
    namespace: str
    directory: Path
    _started: int = field(default=0)

    # The operator.

    @property
    def user(self) -> str:
        """The operator's identity: its own in each namespace, so that the audit log tells them apart."""
        return f"system:serviceaccount:{self.namespace}:operator"

    @property
    def group(self) -> str:
        """What all replicas of this namespace's operator belong to, where each has an identity of its own."""
        return f"operators:{self.namespace}"

    def grant(self, *, without: tuple[str, str] = ("", ""), to: str = "") -> None:
        """What the chart gives an operator that watches one namespace and lives in it.

        `without` is a resource and a verb on it that it does not get; `to` is the operator of another namespace.
        """
        table = [*rights.NAMESPACED, *rights.OWN_NAMESPACE]
        resource, verb = without
        kept = [replace(r, verbs=tuple(v for v in r.verbs if resource not in r.resources or v != verb)) for r in table]
        self._bind(f"namespaces/{self.namespace}", "role", kept, to)

    def grant_everywhere(self) -> None:
        """What the chart gives an operator that watches all namespaces."""
        self._bind("", "clusterrole", [*rights.NAMESPACED, *rights.CLUSTER])
        self._bind(f"namespaces/{self.namespace}", "role", rights.OWN_NAMESPACE)

    def _bind(self, scope: str, kind: str, table: Iterable[rights.Right], to: str = "") -> None:
        root = "/apis/rbac.authorization.k8s.io/v1/" + (f"{scope}/" if scope else "")
        name, title = f"operator-{self.namespace}", "ClusterRole" if kind == "clusterrole" else "Role"
        rules = [{"apiGroups": [r.group], "resources": list(r.resources), "verbs": list(r.verbs)} for r in table]
        names = {"User": to or self.user, "Group": self.group}
        subjects = [{"kind": k, "apiGroup": "rbac.authorization.k8s.io", "name": n} for k, n in names.items()]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": title, "name": name}
        self.must("POST", f"{root}{kind}s", {"metadata": {"name": name}, "rules": rules})
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
        self.must("POST", f"{root}{kind}bindings", binding)

    @contextmanager
    def operator(
        self,
        *args: str,
        images: dict[str, str] | None = None,
        everywhere: bool = False,
        kubeconfig: Path | None = None,
    ) -> Iterator[Operator]:
        """The operator, until the block ends. It ends as a killed one does: nothing is cleaned up."""
        operator = self.start(*args, images=images, everywhere=everywhere, kubeconfig=kubeconfig)
        try:
            yield operator
        finally:
            operator.program.end()

    def start(
        self,
        *args: str,
        images: dict[str, str] | None = None,
        everywhere: bool = False,
        kubeconfig: Path | None = None,
        replica: str = "",
    ) -> Operator:
        """Start an operator; the caller ends its program. A `replica` has an identity of its own in the audit log."""
        self._started += 1
        user = f"{self.user}:{replica}" if replica else self.user
        ports = free_port(), free_port()
        known = {**IMAGES, **(images or {})}
        command = [
            *(sys.executable, "-m", "disagg_operator"),
            *(f"--{name if 'image' in name else name + '-image'}={image}" for name, image in known.items()),
            *(f"--metrics-port={ports[0]}", f"--health-port={ports[1]}"),
            *(() if everywhere else (f"--watch-namespace={self.namespace}",)),
            *args,
        ]
        environment = {
            "KUBECONFIG": str(kubeconfig or self.server.kubeconfig_for(user, [self.group])),
            "POD_NAMESPACE": self.namespace,
            "POD_NAME": f"operator-{self._started}",
        }
        log = self.directory / f"operator-{self._started}.log"
        return Operator(Program(command, log, environment), user, *ports)

    # Resources.

    def must(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Json:
        """A request that has to succeed."""
        answer = self.rest.ask(method, path, body, kind)
        assert answer.code < 300, f"{method} {path}: {answer.body.get('message')}"
        return answer.body

    def path(self, kind: str, name: str = "") -> str:
        if kind == "dinf":
            base = RESOURCES.format(namespace=self.namespace)
        else:
            base = f"{KINDS.get(kind, '/api/v1')}/namespaces/{self.namespace}/{kind}"
        return f"{base}/{name}" if name else base

    def apply(self, resource: Json) -> Json:
        """Apply a resource as its user does."""
        path = self.path("dinf", resource["metadata"]["name"])
        return self.must("PATCH", f"{path}?fieldManager=user&force=true", resource, _APPLY)

    def edit(self, kind: str, name: str, change: Json, subresource: str = "") -> Json:
        """Merge a change into an object, as `kubectl edit` does."""
        path = self.path(kind, name) + (f"/{subresource}" if subresource else "")
        return self.must("PATCH", f"{path}?fieldManager=somebody", change, _MERGE)

    def get(self, kind: str, name: str) -> Json | None:
        answer = self.rest.ask("GET", self.path(kind, name))
        assert answer.code in (200, 404), answer.body
        return answer.body if answer.code == 200 else None

    def live(self, kind: str, name: str) -> Json:
        """An object that has to be there."""
        found = self.get(kind, name)
        assert found is not None, f"{kind} {name} is not there"
        return found

    def delete(self, kind: str, name: str, policy: str = "Background") -> None:
        self.must("DELETE", self.path(kind, name), {"propagationPolicy": policy})

    # What the operator made.

    def children(self, name: str) -> dict[tuple[str, str], Json]:
        """Everything of ours in the namespace that carries the resource's label, by kind and name."""
        selector = f"?labelSelector=inference.disagg.io/name={name}"
        return {
            (kind, item["metadata"]["name"]): item
            for kind in KINDS
            for item in self.must("GET", self.path(kind) + selector)["items"]
        }

    def versions(self, name: str) -> dict[tuple[str, str], str]:
        """Children with their resourceVersions: equal means that nothing was written."""
        return {key: child["metadata"]["resourceVersion"] for key, child in self.children(name).items()}

    def condition(self, name: str, kind: str) -> Json:
        """A condition; empty when it is not there."""
        conditions = self.live("dinf", name).get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def wait_condition(self, name: str, kind: str, status: str, reason: str = "", seconds: float = 30) -> Json:
        """Wait for a condition of the present generation. Returns it."""
        held: Json = {}

        def holds() -> bool:
            held.clear()
            held.update(self.condition(name, kind))
            wanted = {"status": status, **({"reason": reason} if reason else {})}
            generation = self.live("dinf", name)["metadata"]["generation"]
            return {**held, **wanted} == held and held["observedGeneration"] == generation

        try:
            eventually(holds, f"{kind} is {status} {reason}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {held}") from None
        return dict(held)

    def wait_built(self, name: str) -> None:
        """Wait until all children were written for the present generation."""
        eventually(lambda: {("deployments", f"{name}-{part}") for part in PARTS} <= self.children(name).keys(), "built")
        self.wait_status(name)

    def wait_status(self, name: str) -> None:
        """Wait until the status is about the present generation and no longer the one of the first sight."""

        def is_told() -> bool:
            body = self.live("dinf", name)
            reasons = {condition["reason"] for condition in body.get("status", {}).get("conditions", [])}
            told = body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"]
            return told and "Starting" not in reasons

        eventually(is_told, f"the status of {name} is about its present spec")

    # What Kubernetes' own controllers would do.

    def serve(self, name: str, **ready: int) -> None:
        """Have a resource's Deployments report that their rollout is done: all pods ready, or so many of a part."""
        for (kind, child), body in self.children(name).items():
            if kind == "deployments":
                part = child.removeprefix(f"{name}-")
                self.report(child, ready.get(part, body["spec"]["replicas"]))

    def report(self, deployment: str, ready: int, reason: str = "NewReplicaSetAvailable", **more: Any) -> None:
        """A Deployment's status, written as its controller does: all wished pods are there, and so many are ready."""
        body = self.live("deployments", deployment)
        wished = body["spec"]["replicas"]
        condition = {"type": "Progressing", "status": "True", "reason": reason, "message": reason}
        status = {
            "observedGeneration": body["metadata"]["generation"],
            "replicas": wished,
            "updatedReplicas": wished,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": wished - ready,
            "conditions": [condition],
            **more,
        }
        self.edit("deployments", deployment, {"status": status}, "status")

    def put_pod(
        self,
        name: str,
        owner: str,
        role: str,
        status: Json,
        labels: Json | None = None,
        requests: Json | None = None,
    ) -> str:
        """A pod of a role with a status, as a kubelet would show it. Returns its UID."""
        labels = {
            "inference.disagg.io/name": owner,
            "inference.disagg.io/role": role,
            "app.kubernetes.io/managed-by": "disaggregated-inference-operator",
            **(labels or {}),
        }
        security = {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        resources = {"requests": requests or {}}
        container = {"name": "engine", "image": "none", "securityContext": security, "resources": resources}
        self.must(
            "POST",
            self.path("pods"),
            {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}},
        )
        return str(self.edit("pods", name, {"status": status}, "status")["metadata"]["uid"])

    # What was written.

    def writes(self, user: str = "") -> list[Json]:
        """Mutating requests of the operator so far, its Lease left out."""
        return [event for event in self.server.audit() if self._is_write(event, user or self.user)]

    @staticmethod
    def _is_write(event: Json, user: str) -> bool:
        return bool(event["user"]["username"] == user and event["objectRef"]["resource"] != "leases")

    def wait_quiet(self, name: str) -> None:
        """Wait until a status that is about the present spec has not changed for a second."""
        self.wait_status(name)
        seen, since = "", time.monotonic()

        def is_quiet() -> bool:
            nonlocal seen, since
            version = self.live("dinf", name)["metadata"]["resourceVersion"]
            if version != seen:
                seen, since = version, time.monotonic()
            return time.monotonic() - since > 1

        eventually(is_quiet, f"{name} settles")


def holds_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition holds all the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not condition():
            return False
        time.sleep(0.1)
    return True
