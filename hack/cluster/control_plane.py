"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler: their files, their command lines, their health."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster import certificates, network, paths
from cluster.certificates import Authority
from cluster.processes import Processes, Program

FIRST_SERVICE_IP = "10.96.0.1"

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True)
class Plane:
    """One control plane: where its files are, where it listens."""

    directory: Path
    address: str
    port: int
    etcd_port: int
    etcd_peer_port: int
    audit_log: Path
    has_nodes: bool

    @property
    def url(self) -> str:
        """URL of the API server."""
        return f"https://{self.address}:{self.port}"

    @property
    def pki(self) -> Path:
        """Directory of certificates and kubeconfigs."""
        return self.directory / "pki"

    def kubeconfig(self, user: str) -> Path:
        """Kubeconfig of one of the control plane's users."""
        return self.pki / f"{user}.kubeconfig"


_USERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("disagg-admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kube-proxy": ("system:kube-proxy", ("system:node-proxier",)),
    "coredns": ("disagg-coredns", ("system:masters",)),
}
_FRONT_PROXY = "disagg-front-proxy"


def write_files(plane: Plane, node: str = "", *, audits_reads: bool = False) -> Authority:
    """Certificates, kubeconfigs and the audit policy, made anew."""
    authority = certificates.new_authority()
    authority.pair.write(plane.pki, "ca")
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    addresses = sorted({"127.0.0.1", plane.address, FIRST_SERVICE_IP})
    authority.server([*names, "localhost"], addresses).write(plane.pki, "apiserver")
    authority.client("disagg-apiserver", ["system:masters"]).write(plane.pki, "kubelet-client")
    # An authority of its own: who has its certificate speaks for any user to the servers behind the API server.
    front_proxy = certificates.new_authority()
    front_proxy.pair.write(plane.pki, "front-proxy-ca")
    front_proxy.client(_FRONT_PROXY).write(plane.pki, "front-proxy-client")
    (plane.pki / "service-account.key").write_bytes(certificates.service_account_key())
    users = dict(_USERS)
    if node:
        users["kubelet"] = (f"system:node:{node}", ("system:nodes",))
    for file, (user, groups) in users.items():
        text = certificates.kubeconfig(plane.url, authority, authority.client(user, groups))
        path = plane.kubeconfig(file)
        path.touch(mode=0o600)
        path.write_text(text)
    policy = {**_AUDIT_POLICY, "rules": [{"level": "Metadata"}]} if audits_reads else _AUDIT_POLICY
    (plane.directory / "audit-policy.yaml").write_text(yaml.safe_dump(policy))
    return authority


def etcd(plane: Plane) -> Program:
    """etcd, without waiting for the disk: what it holds is made anew at each start of a cluster."""
    client, peer = f"http://127.0.0.1:{plane.etcd_port}", f"http://127.0.0.1:{plane.etcd_peer_port}"
    argv = [
        str(paths.binary("etcd")),
        f"--data-dir={plane.directory / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    ]
    return Program("etcd", argv, dies_with_parent=not plane.has_nodes)


def apiserver(plane: Plane) -> Program:
    """kube-apiserver with RBAC, Pod Security and an audit log of everything that is written."""
    pki = plane.pki
    argv = [
        str(paths.binary("kube-apiserver")),
        f"--etcd-servers=http://127.0.0.1:{plane.etcd_port}",
        f"--bind-address={plane.address}",
        f"--advertise-address={plane.address}",
        f"--secure-port={plane.port}",
        f"--service-cluster-ip-range={network.SERVICE_RANGE}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'service-account.key'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        "--authorization-mode=Node,RBAC",
        f"--audit-policy-file={plane.directory / 'audit-policy.yaml'}",
        f"--audit-log-path={plane.audit_log}",
        "--endpoint-reconciler-type=" + ("lease" if plane.has_nodes else "none"),
        *_aggregation(pki),
    ]
    argv.append(
        "--enable-admission-plugins=NodeRestriction"
        if plane.has_nodes
        else "--disable-admission-plugins=ServiceAccount"
    )
    return Program("kube-apiserver", argv, dies_with_parent=not plane.has_nodes)


def _aggregation(pki: Path) -> list[str]:
    """How the API server passes requests on to the servers of APIServices, such as metrics-server, and for whom."""
    return [
        f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        f"--requestheader-allowed-names={_FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]


def controller_manager(
    plane: Plane, controllers: Sequence[str] = ("*",), port: int = 10257, flags: Sequence[str] = ()
) -> Program:
    """kube-controller-manager, with all controllers or the named ones."""
    argv = [
        str(paths.binary("kube-controller-manager")),
        f"--kubeconfig={plane.kubeconfig('kube-controller-manager')}",
        f"--service-account-private-key-file={plane.pki / 'service-account.key'}",
        f"--root-ca-file={plane.pki / 'ca.crt'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--controllers={','.join(controllers)}",
        *flags,
    ]
    return Program("kube-controller-manager", argv, dies_with_parent=not plane.has_nodes)


def scheduler(plane: Plane) -> Program:
    """kube-scheduler."""
    argv = [
        str(paths.binary("kube-scheduler")),
        f"--kubeconfig={plane.kubeconfig('kube-scheduler')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]
    return Program("kube-scheduler", argv)


def is_api_ready(plane: Plane) -> bool:
    """Whether the API server says that it is ready."""
    context = ssl.create_default_context(cafile=str(plane.pki / "ca.crt"))
    context.load_cert_chain(plane.pki / "kubelet-client.crt", plane.pki / "kubelet-client.key")
    try:
        with urllib.request.urlopen(f"{plane.url}/readyz", context=context, timeout=3) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def start_api(plane: Plane, processes: Processes) -> None:
    """Start etcd and the API server, and wait until it is ready."""
    for program in (etcd(plane), apiserver(plane)):
        if not processes.alive(program.name):
            processes.start(program)
    processes.wait_ready("kube-apiserver", lambda: is_api_ready(plane), timeout=60)
