"""What the end-to-end tests put into the cluster: a served model by a CR, or one plain vLLM server to compare with."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from demo.client import counters
from demo.cluster import ROOT, Cluster
from demo.kubectl import Manifest, condition, wait_until

MODEL = "smollm2-135m"
BLOCK = 128  # tokens of a KV block on CPU, vLLM's default there
READY_TIMEOUT = 900


def example(
    name: str,
    *,
    dtype: str = "bfloat16",
    decode_env: dict[str, str] | None = None,
    engine_env: dict[str, str] | None = None,
    store: dict[str, str] | None = None,
) -> Manifest:
    """examples/smollm.yaml under another name and dtype; `store` changes its `spec.kvStore`."""
    resource: Manifest = yaml.safe_load((ROOT / "examples" / "smollm.yaml").read_text())
    resource["metadata"]["name"] = name
    args = resource["spec"]["engine"]["args"]
    args[args.index("--dtype") + 1] = dtype
    resource["spec"]["kvStore"] |= store or {}
    if decode_env:
        resource["spec"]["decode"]["env"] = [{"name": k, "value": v} for k, v in decode_env.items()]
    resource["spec"]["engine"]["env"] += [{"name": k, "value": v} for k, v in (engine_env or {}).items()]
    return resource


def restricted_namespace(cluster: Cluster, name: str) -> None:
    """A namespace in which only pods of Pod Security "restricted" may run."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "kubernetes.io/metadata.name": name}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})


class Served:
    """One DisaggregatedInference in the cluster."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster = cluster
        self.kubectl = cluster.kubectl
        self.namespace = namespace
        self.name = name

    def resource(self) -> Manifest:
        """The CR as the API server has it."""
        found = self.kubectl.get("dinf", self.name, self.namespace)
        assert found is not None, f"{self.name} is not there"
        return found

    def condition(self, kind: str) -> Manifest:
        return condition(self.resource(), kind)

    def wait_for(self, kind: str, status: str, reason: str = "", timeout: float = READY_TIMEOUT) -> Manifest:
        """Wait until a condition has a status (and reason) for the present generation."""

        def there() -> Manifest | None:
            resource = self.resource()
            found = condition(resource, kind)
            current = resource.get("status", {}).get("observedGeneration") == resource["metadata"]["generation"]
            fits = found.get("status") == status and (not reason or found.get("reason") == reason)
            return found if current and fits else None

        try:
            return wait_until(there, timeout=timeout, what=f"{self.name}: {kind} {status} {reason}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{yaml.safe_dump(self.resource().get('status'))}\n{self.describe()}") from None

    def describe(self) -> str:
        """Pods and the last events, for failure messages."""
        pods = self.kubectl.run("get", "pods", "-n", self.namespace, "-o", "wide")
        events = self.kubectl.run("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")
        return pods + "\n".join(events.splitlines()[-15:])

    def edit(self, **spec: Any) -> None:
        """Merge fields into the spec."""
        self.kubectl.patch("dinf", self.name, self.namespace, {"spec": spec})

    def pods(self, role: str) -> list[Manifest]:
        """The role's pods that are not leaving."""
        selector = f"inference.disagg.io/name={self.name},inference.disagg.io/role={role}"
        found = self.kubectl.items("pods", self.namespace, selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod_names(self, role: str) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods(role)}

    def pod_url(self, role: str) -> str:
        """The first pod's own address: this machine is the node, so pods answer it."""
        return url_of(self.pods(role)[0])

    def requests_running(self, role: str) -> float:
        """Requests that the role's ready pods have taken and not ended."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return sum(counters(url_of(pod)).get(name, 0) for pod in self.pods(role) if is_ready(pod) for name in names)

    def url(self) -> str:
        """The router's address."""
        service = self.kubectl.get("service", f"{self.name}-router", self.namespace)
        assert service is not None
        return f"http://{service['spec']['clusterIP']}:8000"

    def delete(self, timeout: float = 180) -> None:
        """Delete the CR and wait until no object of it is left."""
        self.kubectl.run("delete", "dinf", self.name, "-n", self.namespace, "--wait=true", "--ignore-not-found")
        wait_until(lambda: not self.leftovers(), timeout=timeout, what=f"children of {self.name} are gone")

    def leftovers(self) -> list[str]:
        """Names of objects that carry this resource's label."""
        kinds = (
            "deployments,replicasets,pods,services,configmaps,serviceaccounts,roles,rolebindings,"
            "poddisruptionbudgets,networkpolicies,controllerrevisions,disaggregatedinferencescalers"
        )
        found = self.kubectl.items(kinds, self.namespace, f"inference.disagg.io/name={self.name}")
        return [f"{item['kind']}/{item['metadata']['name']}" for item in found]


def is_ready(pod: Manifest) -> bool:
    return bool(condition(pod, "Ready").get("status") == "True")


def url_of(pod: Manifest) -> str:
    return f"http://{pod['status']['podIP']}:8000"


@contextmanager
def serve(cluster: Cluster, namespace: str, resource: Manifest) -> Iterator[Served]:
    """Apply a resource, wait until it is Ready, and delete it at the end."""
    restricted_namespace(cluster, namespace)
    resource = copy.deepcopy(resource)
    resource["metadata"]["namespace"] = namespace
    cluster.kubectl.apply(resource)
    served = Served(cluster, namespace, resource["metadata"]["name"])
    try:
        served.wait_for("Ready", "True")
        yield served
    finally:
        served.delete()


@contextmanager
def plain_server(cluster: Cluster, namespace: str, resource: Manifest) -> Iterator[str]:
    """One vLLM server with the resource's own flags and no connector: the oracle. Yields its URL."""
    restricted_namespace(cluster, namespace)
    pod = _plain_pod(cluster, resource)
    cluster.kubectl.apply({**pod, "metadata": {"name": "oracle", "namespace": namespace}})

    def address() -> str | None:
        found = cluster.kubectl.get("pod", "oracle", namespace) or {}
        return url_of(found) if is_ready(found) else None

    try:
        yield wait_until(address, timeout=READY_TIMEOUT, what="the plain server is ready")
    finally:
        cluster.kubectl.run("delete", "pod", "oracle", "-n", namespace, "--grace-period=1", "--ignore-not-found")


def _plain_pod(cluster: Cluster, resource: Manifest) -> Manifest:
    spec = resource["spec"]
    image = spec["model"]["uri"].removeprefix("oci://")
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "engine",
        "image": cluster.images["engine-cpu"],
        "command": ["vllm", "serve", "/model", "--served-model-name", MODEL, "--port", "8000"],
        "args": spec["engine"]["args"],
        "env": [*spec["engine"]["env"], {"name": "HOME", "value": "/tmp"}, {"name": "HF_HUB_OFFLINE", "value": "1"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 2, "failureThreshold": 600},
        "securityContext": restricted,
        "volumeMounts": [
            {"name": "model", "mountPath": "/model", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "model", "image": {"reference": image}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}},
    ]
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "securityContext": security,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
        },
    }
