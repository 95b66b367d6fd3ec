"""The resource metrics API of Kubernetes, answered by the test: pods use as much CPU as it says."""

import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from api.operator_runs.site import Json, Site
from cluster.apiserver import ApiServer
from router.programs import eventually

_GROUP, _VERSION = "metrics.k8s.io", "v1beta1"
_ROOT = f"/apis/{_GROUP}/{_VERSION}"


@contextmanager
def cpu_use(server: ApiServer) -> Iterator[dict[str, int]]:
    """The metrics API of an API server, while the block runs. Gives a table: thousandths of a core by pod name."""
    table: dict[str, int] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(_answer(self.path, table, server)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.socket = _context(server).wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        with _registered(server, listening.server_port):
            yield table
    finally:
        listening.shutdown()
        listening.server_close()


def _context(server: ApiServer) -> ssl.SSLContext:
    pair = server.authority.server(["localhost"], ["127.0.0.1"])
    pair.write(server.plane.pki, "cpu-use")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.plane.pki / "cpu-use.crt", server.plane.pki / "cpu-use.key")
    return context


@contextmanager
def _registered(server: ApiServer, port: int) -> Iterator[None]:
    """The API server passes requests for the metrics API on to a port of this machine."""
    service = {"name": "cpu-use", "namespace": "default", "port": port}
    group = {"group": _GROUP, "version": _VERSION, "groupPriorityMinimum": 100, "versionPriority": 100}
    manifests: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "cpu-use", "namespace": "default"},
            "spec": {"type": "ExternalName", "externalName": "127.0.0.1"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{_VERSION}.{_GROUP}"},
            "spec": {**group, "service": service, "insecureSkipTLSVerify": True},
        },
    ]
    text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
    applied = server.kubectl("apply", "-f", "-", stdin=text)
    assert applied.returncode == 0, applied.stderr
    try:
        eventually(lambda: server.kubectl("get", "--raw", f"{_ROOT}/pods").returncode == 0, "the metrics API is served")
        yield
    finally:
        server.kubectl("delete", "-f", "-", stdin=text)


def _answer(path: str, table: dict[str, int], server: ApiServer) -> Json:
    url = urlsplit(path)
    if not url.path.startswith(_ROOT):
        return {"kind": "APIGroup", "apiVersion": "v1", "name": _GROUP, "versions": []}
    parts = url.path.removeprefix(_ROOT).strip("/").split("/")
    if parts[-1] != "pods":
        pods = {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
        version = f"{_GROUP}/{_VERSION}"
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [pods]}
    namespace = parts[1] if len(parts) == 3 else "default"
    names = _selected(server, namespace, parse_qs(url.query).get("labelSelector", [""])[0])
    items = [_use(namespace, name, table[name]) for name in names if name in table]
    return {"kind": "PodMetricsList", "apiVersion": f"{_GROUP}/{_VERSION}", "metadata": {}, "items": items}


def _selected(server: ApiServer, namespace: str, selector: str) -> list[str]:
    done = server.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "jsonpath={.items[*].metadata.name}")
    return done.stdout.split()


def _use(namespace: str, pod: str, thousandths: int) -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    containers = [{"name": "engine", "usage": {"cpu": f"{thousandths}m", "memory": "1Mi"}}]
    metadata = {"name": pod, "namespace": namespace}
    return {"metadata": metadata, "timestamp": now, "window": "10s", "containers": containers}


def put_ready_pod(site: Site, owner: str, role: str) -> str:
    """A pod of a role that has run for long, with a request of one core. Returns its name."""
    name, long_ago = f"{owner}-{role}-0", "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": long_ago}
    status = {"phase": "Running", "startTime": long_ago, "conditions": [ready]}
    site.put_pod(name, owner, role, status, requests={"cpu": "1"})
    return name
