"""A real API server for tests that need no pods: ready in about two seconds, gone with the block."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import certificates, control_plane, paths
from cluster.certificates import Authority
from cluster.control_plane import Plane
from cluster.ports import free_port
from cluster.processes import Processes

CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "deployment-controller",
    "replicaset-controller",
    "disruption-controller",
    "serviceaccount-controller",
    "endpointslice-controller",
    "clusterrole-aggregation-controller",
)


@dataclass(frozen=True)
class ApiServer:
    """A running API server."""

    plane: Plane
    authority: Authority

    @property
    def url(self) -> str:
        """Its URL."""
        return self.plane.url

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of an administrator."""
        return self.plane.kubeconfig("admin")

    @property
    def audit_log(self) -> Path:
        """One JSON event a line for every mutating request; for every read too, where that was asked for."""
        return self.plane.audit_log

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for any user, such as `system:serviceaccount:ns:name` with its groups."""
        path = self.plane.pki / f"user-{user.replace(':', '-')}.kubeconfig"
        path.write_text(certificates.kubeconfig(self.url, self.authority, self.authority.client(user, groups)))
        return path

    def token_kubeconfig(self, namespace: str, service_account: str) -> Path:
        """A kubeconfig with a token of a ServiceAccount, which must exist. Raises RuntimeError with kubectl's text."""
        done = self.kubectl("create", "token", service_account, "--namespace", namespace)
        if done.returncode != 0:
            raise RuntimeError(f"no token for {namespace}/{service_account}: {done.stderr.strip()}")
        path = self.plane.pki / f"token-{namespace}-{service_account}.kubeconfig"
        path.write_text(certificates.token_kubeconfig(self.url, self.authority, done.stdout.strip()))
        return path

    def kubectl(self, *args: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run kubectl as administrator; the caller judges the result."""
        command = [str(paths.binary("kubectl")), "--kubeconfig", str(self.kubeconfig), *args]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)

    def audit(self) -> list[dict[str, object]]:
        """Events of the audit log so far."""
        if not self.audit_log.exists():
            return []
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]


@contextmanager
def start(
    directory: Path,
    *,
    controllers: Sequence[str] = (),
    controller_flags: Sequence[str] = (),
    audits_reads: bool = False,
) -> Iterator[ApiServer]:
    """An API server with an empty etcd, its files below `directory`. Named controllers run beside it."""
    plane = Plane(
        directory,
        "127.0.0.1",
        free_port(),
        free_port(),
        free_port(),
        audit_log=directory / "audit.log",
        has_nodes=False,
    )
    authority = control_plane.write_files(plane, audits_reads=audits_reads)
    processes = Processes(directory / "processes")
    try:
        control_plane.start_api(plane, processes)
        if controllers:
            manager = control_plane.controller_manager(plane, controllers, free_port(), controller_flags)
            processes.start(manager)
        yield ApiServer(plane, authority)
    finally:
        for name in reversed(processes.names()):
            processes.stop(name)
