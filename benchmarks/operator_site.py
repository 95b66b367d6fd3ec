"""What the operator's figures stand on: an API server of their own, its audit log as it grows, and bare writes.

All times come from the audit log, by the API server's clock: when the first request came, when the last was answered.
"""

import asyncio
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from api.conftest import install_crd, install_scaler_crd
from api.manifests import resource
from api.operator_runs.site import IMAGES, Operator, Site
from api.operator_runs.test_quiet import is_up
from api.rest import Rest
from cluster import apiserver, binaries, paths
from cluster.apiserver import ApiServer
from cluster.processes import Processes
from demo.kubectl import Kubectl
from disagg_operator.api.names import KIND
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.desired import build_desired
from disagg_operator.build.inputs import ClusterFacts, Images, Manifest, Pins
from disagg_operator.kube.client import KubeClient
from disagg_operator.kube.connect import connect
from disagg_operator.kube.kinds import AUTOSCALER, CHILDREN, DEPLOYMENT, SCALER
from disagg_operator.plan.changes import plan_changes
from disagg_operator.plan.counts import decide_counts
from disagg_operator.plan.pins import decide_pins
from disagg_operator.settings import build_parser
from router.programs import eventually

READS: Final = frozenset({"get", "list"})
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
WORKERS: Final[int] = build_parser().get_default("workers")
PINS: Final = Pins(Images(IMAGES["engine-image-cuda"], IMAGES["engine-image-cpu"], IMAGES["store"], IMAGES["router"]))
_CONTROLLERS: Final = ("garbage-collector-controller", "namespace-controller")
# What the operator writes besides children: how it leads, what it tells.
_TOLD: Final = frozenset({"leases", "events", "disaggregatedinferences"})
_KINDS: Final = {kind.plural: kind for kind in (*CHILDREN, SCALER, AUTOSCALER)}
_WARM: Final = "warm"
_PATIENCE: Final = 300.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Call:
    """One request, as the audit log has it. Times are seconds since the epoch."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    received: float
    answered: float

    @property
    def is_child_write(self) -> bool:
        """Whether a child object was written."""
        return self.verb in WRITES and self.resource not in _TOLD and not self.subresource and self.code < 300


@dataclass
class AuditLog:
    """The audit log, read as it grows. A file that was rotated away is read to its end first."""

    path: Path
    _file: Any = None
    _rest: bytes = b""

    def read(self) -> list[Call]:
        """What came since the last time."""
        found: list[Call] = []
        while True:
            if self._file is None:
                if not self.path.exists():
                    return found
                self._file = self.path.open("rb")
            *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
            found += [_read_call(json.loads(line)) for line in lines]
            if self._rest or self.path.stat().st_ino == _inode(self._file):
                return found
            self._file.close()
            self._file = None

    def follow(self, is_done: Callable[[list[Call]], bool], what: str) -> list[Call]:
        """All calls from the last reading until they are what is waited for."""
        calls, end = self.read(), time.monotonic() + _PATIENCE
        while not is_done(calls):
            assert time.monotonic() < end, f"not within {_PATIENCE:.0f} s: {what}"
            # Seldom, so that looking takes little from what is timed.
            time.sleep(0.2)
            calls += self.read()
        return calls


def _inode(file: Any) -> int:
    return int(Path(f"/proc/self/fd/{file.fileno()}").stat().st_ino)


def _read_call(event: dict[str, Any]) -> Call:
    target = event.get("objectRef", {})
    return Call(
        user=event["user"]["username"],
        verb=event["verb"],
        resource=target.get("resource", event["requestURI"]),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        received=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        answered=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
    )


@dataclass
class World:
    """One API server with the CRDs, and namespaces with an operator's rights in them."""

    server: ApiServer
    directory: Path
    kubectl: Kubectl
    audit: AuditLog

    def new_site(self) -> Site:
        """A namespace, empty but for the rights of an operator, which is not started."""
        site = Site(self.server, Rest(self.server), f"figures-{next(_numbers)}", self.directory)
        self.kubectl.run("create", "namespace", site.namespace)
        site.grant()
        return site

    def remove(self, site: Site) -> None:
        """Delete the namespace and all in it, and wait until it is gone, so that the next one finds the same server."""
        self.kubectl.run("delete", "namespace", site.namespace, "--wait=false")
        path = f"/api/v1/namespaces/{site.namespace}"
        eventually(lambda: site.rest.ask("GET", path).code == 404, f"{site.namespace} is gone", _PATIENCE)
        self.audit.read()

    def apply(self, site: Site, names: Iterable[str]) -> None:
        """Apply resources of these names, as a user does: one `kubectl apply`."""
        made = [resource(name) for name in names]
        for one in made:
            one["metadata"]["namespace"] = site.namespace
        self.kubectl.apply(*made)


@contextmanager
def world(directory: Path, *, audits_reads: bool) -> Iterator[World]:
    """The API server, until the block ends."""
    binaries.require(["kube-apiserver", "etcd", "kubectl", "kube-controller-manager"])
    directory.mkdir()
    with apiserver.start(directory, controllers=_CONTROLLERS, audits_reads=audits_reads) as server:
        kubectl = Kubectl(paths.binary("kubectl"), server.kubeconfig)
        install_crd(kubectl)
        install_scaler_crd(kubectl)
        yield World(server, directory, kubectl, AuditLog(server.audit_log))


def apply_bare(made: World, site: Site, names: Iterable[str]) -> list[tuple[Manifest, ...]]:
    """Resources in a namespace without an operator, and the children that each should have."""
    made.apply(site, names)
    return [plan_children(site, body) for body in bodies(site)]


@contextmanager
def warm_operator(made: World, site: Site) -> Iterator[Operator]:
    """An operator that is connected and has built one resource."""
    with site.operator() as operator:
        eventually(lambda: is_up(operator), "the operator is up")
        made.apply(site, [_WARM])
        site.wait_built(_WARM)
        site.wait_quiet(_WARM)
        made.audit.read()
        yield operator


def bodies(site: Site) -> list[Manifest]:
    """The resources that were applied, as the API server has them, without the first one."""
    items = site.must("GET", site.path("dinf"))["items"]
    return [item for item in items if item["metadata"]["name"] != _WARM]


def plan_children(site: Site, body: Manifest, there: Sequence[Manifest] = ()) -> tuple[Manifest, ...]:
    """What the operator would apply for a resource that has these children: its own pure decisions."""
    facts = ClusterFacts(operator_namespace=site.namespace, has_scaler=True)
    read = DisaggregatedInference.from_object(body)
    records = [child for child in there if child["kind"] == "ControllerRevision"]
    decision = decide_pins(read, records, PINS)
    desired = build_desired(read, decision.pins, facts, decide_counts(read, there).counts)
    return plan_changes((*decision.records, *desired.children), there, read.metadata.uid, KIND).applies


def live_children(site: Site, name: str) -> list[Manifest]:
    """The children of a resource as the operator reads them, with their kinds."""
    return [
        {"apiVersion": _KINDS[plural].api_version, "kind": _KINDS[plural].kind, **child}
        for (plural, _), child in site.children(name).items()
    ]


def count_children(site: Site) -> int:
    """How many children a new resource gets."""
    made = resource(_WARM)
    made["metadata"] |= {"namespace": site.namespace, "uid": "none", "generation": 1}
    return len(plan_children(site, made))


def child_writes(calls: Iterable[Call], site: Site) -> list[Call]:
    """Children written by the operator's identity in a namespace, those of the first resource left out."""
    return [
        call
        for call in calls
        if call.user == site.user
        and call.is_child_write
        and call.namespace == site.namespace
        and not call.name.startswith(f"{_WARM}-")
    ]


def write_bare(site: Site, groups: Iterable[Sequence[Manifest]]) -> None:
    """Write children by server-side apply and nothing else, with the operator's client, identity and concurrency.

    A group is written in its order, and up to `WORKERS` groups side by side. Connections are made before.
    """
    waiting = iter(groups)

    async def work(client: KubeClient) -> None:
        for group in waiting:
            for manifest in group:
                await client.apply(manifest)

    async def write() -> None:
        async with await connect(_count_nothing, str(site.server.kubeconfig_for(site.user))) as client:
            await asyncio.gather(*(client.list(DEPLOYMENT, site.namespace) for _ in range(WORKERS)))
            await asyncio.gather(*(work(client) for _ in range(WORKERS)))

    asyncio.run(write())


def _count_nothing(verb: str, code: int) -> None:
    """The audit log counts."""


def serve_all(site: Site) -> None:
    """Have all Deployments report that all their pods are ready."""
    deployments = site.must("GET", site.path("deployments"))["items"]
    with ThreadPoolExecutor(4) as pool:
        done = [
            pool.submit(site.report, deployment["metadata"]["name"], deployment["spec"]["replicas"])
            for deployment in deployments
            if deployment.get("status", {}).get("observedGeneration") != deployment["metadata"]["generation"]
        ]
        for one in done:
            one.result()


def cpu_seconds(made: World, *pids: int) -> float:
    """Processor time that etcd, the API server and these processes have used so far."""
    servers = Processes(made.directory / "processes")
    known = [servers.identity(name) for name in ("etcd", "kube-apiserver")]
    used = 0
    for pid in (*(identity.pid for identity in known if identity is not None), *pids):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def memory_of(operator: Operator) -> dict[str, float]:
    """Resident memory of an operator now and at most so far, in MiB."""
    lines = Path(f"/proc/{operator.program.pid}/status").read_text().splitlines()
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"resident": round(int(sizes["VmRSS"]) / 1024, 1), "most": round(int(sizes["VmHWM"]) / 1024, 1)}
