"""A real kube-apiserver, and Pods in it whose status the tests write: no kubelet runs here."""

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster import paths
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from router.programs import Program, eventually, free_port, running

_TOKEN = "test-admin"


@dataclass(frozen=True)
class Api:
    """A running API server. `directory` is for files of its users."""

    url: str
    directory: Path

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> dict[str, object]:
        """One request as administrator. Raises urllib's HTTPError."""
        request = urllib.request.Request(  # noqa: S310  # an https URL of our own making
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {_TOKEN}", "Content-Type": kind},
        )
        context = ssl._create_unverified_context()  # noqa: S323  # its certificate is made anew for each run
        with urllib.request.urlopen(request, context=context, timeout=10) as reply:  # noqa: S310
            answer: dict[str, object] = json.load(reply)
        return answer

    def ready(self) -> bool:
        try:
            self.call("GET", "/api/v1/namespaces/default")
        except (OSError, ValueError):
            return False
        return True

    def kubeconfig(self, namespace: str) -> Path:
        """A kubeconfig of the router's own account in a namespace: it acts as that account and has no other rights."""
        account = f"system:serviceaccount:{namespace}:router"
        user: dict[str, object] = {"token": _TOKEN, "as": account}
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        file = self.directory / f"{namespace}.kubeconfig"
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": "test", "user": user}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "current-context": "test",
                }
            )
        )
        return file

    def service_account(self, namespace: str) -> Path:
        """What the kubelet mounts into a pod of the router's account: its own token, and the certificate to trust."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        with contextlib.suppress(urllib.error.HTTPError):  # it is there already
            self.call("POST", path, {"metadata": {"name": "router"}})
        answer = self.call("POST", f"{path}/router/token", {"spec": {"expirationSeconds": 3600}})
        folder = self.directory / f"{namespace}-account"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(answer["status"]["token"])  # type: ignore[index]
        (folder / "ca.crt").write_bytes((self.directory / "certs" / "apiserver.crt").read_bytes())
        return folder

    def new_namespace(self, name: str) -> None:
        """A namespace in which the router's account may read pods, and nothing else."""
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
        self.call("POST", f"{rbac}/roles", {"metadata": {"name": "router"}, "rules": rules})
        binding = {
            "metadata": {"name": "router"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "router"},
            "subjects": [{"kind": "ServiceAccount", "name": "router", "namespace": name}],
        }
        self.call("POST", f"{rbac}/rolebindings", binding)

    def put_pod(self, namespace: str, name: str, labels: dict[str, str], address: str, *, ready: bool = True) -> None:
        """A Pod as a kubelet would show it: made when missing, its status written anew."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        spec = {"nodeName": "nowhere", "containers": [{"name": "engine", "image": "none"}]}
        with contextlib.suppress(urllib.error.HTTPError):  # it is there already
            self.call("POST", pods, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        self.call("PATCH", f"{pods}/{name}/status", {"status": status}, "application/merge-patch+json")

    def delete_pod(self, namespace: str, name: str) -> None:
        """Gone at once, as after a force delete."""
        self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[Api]:
    """An API server with an empty etcd, for as long as the block runs."""
    etcd_url, port = f"http://127.0.0.1:{free_port()}", free_port()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "sa.key").write_bytes(key.private_bytes(*private))
    (directory / "tokens.csv").write_text(f"{_TOKEN},admin,1,system:masters\n")
    etcd = Program(
        [
            str(paths.binary("etcd")),
            f"--data-dir={directory}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
        ],
        directory / "etcd.log",
    )
    server = Program(
        [
            str(paths.binary("kube-apiserver")),
            f"--etcd-servers={etcd_url}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={directory}/certs",
            "--service-account-issuer=https://test",
            f"--service-account-key-file={directory}/sa.key",
            f"--service-account-signing-key-file={directory}/sa.key",
            f"--token-auth-file={directory}/tokens.csv",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
        ],
        directory / "apiserver.log",
    )
    with running(etcd, server):
        api = Api(f"https://127.0.0.1:{port}", directory)
        eventually(api.ready, f"the API server answers; see {directory}/apiserver.log", 60)
        yield api
