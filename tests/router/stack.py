"""A router as its pod runs it: a real vllm-router and the front. The engines are stand-ins behind real Pod objects."""

import json
import signal
import sys
import sysconfig
import urllib.request
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from router.apiserver import Api
from router.fake_engine import Behaviour
from router.programs import Program, eventually, free_port

HERE = Path(__file__).parent
ROLE = "inference.disagg.io/role"
NAME = "inference.disagg.io/name"
REVISION = "inference.disagg.io/kv-revision"

# Quick checks, so that a test of a hang takes seconds. The proportions are those of the defaults.
QUICK = [
    "--check-interval=0.2",
    "--check-idle-interval=0.5",
    "--check-timeout=0.5",
    "--breaker-cooldown=0.2",
    "--decode-wait=2",
    "--lame-duck-seconds=0.5",
    "--api-key-reload-seconds=0.2",
]


def get(url: str) -> bytes:
    """The body of a GET within 10 s. Raises OSError."""
    with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310
        body: bytes = reply.read()
    return body


@dataclass
class Engine:
    """A stand-in engine and the Pod that stands for it."""

    stack: "Stack"
    name: str
    role: str
    host: str
    revision: str = ""
    control_port: int = field(default_factory=free_port)
    program: Program | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.stack.engine_port}"

    def start(self) -> None:
        argv = [sys.executable, str(HERE / "fake_engine.py"), self.name, self.host]
        argv += [str(self.stack.engine_port), str(self.control_port)]
        self.program = Program(argv, self.stack.directory / f"{self.name}.log", {"PYTHONPATH": str(HERE.parent)})
        eventually(self._answers, f"{self.name} is up; see {self.program.log}")

    def _answers(self) -> bool:
        try:
            get(self.url + "/health")
        except OSError:
            return False
        return True

    def end(self) -> None:
        if self.program is not None:
            self.program.end()

    def send(self, number: signal.Signals) -> None:
        assert self.program is not None
        self.program.send(number)

    def show(self, *, ready: bool = True) -> None:
        """Writes the Pod: made when missing."""
        labels = {NAME: "di", ROLE: self.role} | ({REVISION: self.revision} if self.revision else {})
        self.stack.api.put_pod(self.stack.namespace, self.name, labels, self.host, ready=ready)

    def hide(self) -> None:
        """Deletes the Pod."""
        self.stack.api.delete_pod(self.stack.namespace, self.name)

    def behave(self, behaviour: Behaviour | None = None) -> None:
        """Sets how it behaves and forgets what it saw."""
        body = json.dumps(asdict(behaviour or Behaviour())).encode()
        url = f"http://{self.host}:{self.control_port}/"
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310

    def seen(self) -> list[dict[str, object]]:
        """The requests it got, health checks left out."""
        seen: list[dict[str, object]] = json.loads(get(f"http://{self.host}:{self.control_port}/"))["seen"]
        return seen

    def cancelled(self) -> int:
        """How many requests their sender gave up."""
        count: int = json.loads(get(f"http://{self.host}:{self.control_port}/"))["cancelled"]
        return count


@dataclass
class Router:
    """One router pod: a vllm-router and a front."""

    discovery: Program
    discovery_url: str
    front: Program
    url: str
    admin_url: str

    def ready(self) -> bool:
        try:
            return get(self.admin_url + "/ready") == b"ok\n"
        except OSError:
            return False

    def listed(self, role: str) -> set[str]:
        """The engines that discovery lists."""
        workers = json.loads(get(self.discovery_url + "/workers"))["workers"]
        return {worker["url"] for worker in workers if worker["worker_type"] == role}

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample, 0 when it is not there."""
        for line in get(self.admin_url + "/metrics").decode().splitlines():
            sample, _, value = line.rpartition(" ")
            shown, _, rest = sample.partition("{")
            if shown == name and all(f'{key}="{wanted}"' in rest for key, wanted in labels.items()):
                return float(value)
        return 0.0

    def usable(self, role: str) -> int:
        """How many engines of a role the front sends requests to."""
        return int(self.metric("disagg_router_engines", role=role, state="closed"))

    def end(self) -> None:
        self.front.end()
        self.discovery.end()


@dataclass
class Stack:
    """Engines and routers in a namespace of their own."""

    api: Api
    namespace: str
    directory: Path
    engine_port: int = field(default_factory=lambda: free_port("127.0.0.2"))
    engines: list[Engine] = field(default_factory=list)
    routers: list[Router] = field(default_factory=list)

    def add_engine(self, role: str, *, shown: bool = True, revision: str = "") -> Engine:
        number = len(self.engines) + 2
        engine = Engine(self, f"{role}-{number}", role, f"127.0.0.{number}", revision)
        self.engines.append(engine)
        engine.start()
        if shown:
            engine.show()
        return engine

    def add_router(self, *flags: str, kubeconfig: Path | None = None, wait: bool = True) -> Router:
        """A router pod. `flags` are the front's."""
        number, port, listen, admin = len(self.routers), free_port(), free_port(), free_port()
        scripts = sysconfig.get_path("scripts")
        config = kubeconfig or self.api.kubeconfig(self.namespace)
        discovery = Program(
            vllm_router_argv(scripts, port, self.namespace, self.engine_port),
            self.directory / f"vllm-router-{number}.log",
            {"KUBECONFIG": str(config)},
        )
        argv = [sys.executable, "-m", "disagg_router", f"--discovery-url=http://127.0.0.1:{port}"]
        argv += [f"--listen-port={listen}", f"--admin-port={admin}", "--model-name=smol", *QUICK, *flags]
        argv += ["--listen-host=127.0.0.1", "--admin-host=127.0.0.1"]
        front = Program(argv, self.directory / f"front-{number}.log")
        router = Router(
            discovery, f"http://127.0.0.1:{port}", front, f"http://127.0.0.1:{listen}", f"http://127.0.0.1:{admin}"
        )
        self.routers.append(router)
        if wait:
            eventually(router.ready, f"the router is ready; see {front.log}")
            self.settle(router)
        return router

    def pairing_flags(self) -> list[str]:
        """Flags with which a front learns KV revisions, as its pod has them."""
        account = self.api.service_account(self.namespace)
        url = f"{self.api.url}/api/v1/namespaces/{self.namespace}/pods?labelSelector={NAME}%3Ddi"
        return [f"--pods-url={url}", f"--service-account-dir={account}"]

    def settle(self, router: Router) -> None:
        """Waits until the router uses every engine that is running."""
        for role in ("prefill", "decode"):
            alive = sum(e.role == role and e.program is not None and e.program.running for e in self.engines)
            eventually(partial(_uses, router, role, alive), f"{alive} {role} engines in use")

    def end(self) -> None:
        for router in self.routers:
            router.end()
        for engine in self.engines:
            engine.end()


def _uses(router: Router, role: str, count: int) -> bool:
    return router.usable(role) == count


def vllm_router_argv(scripts: str, port: int, namespace: str, engine_port: int) -> list[str]:
    """The command line of the router pod's vllm-router container."""
    return [
        f"{scripts}/vllm-router",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--prometheus-port={free_port()}",
        "--vllm-pd-disaggregation",
        "--service-discovery",
        "--prefill-selector",
        f"{NAME}=di",
        f"{ROLE}=prefill",
        "--decode-selector",
        f"{NAME}=di",
        f"{ROLE}=decode",
        f"--service-discovery-port={engine_port}",
        f"--service-discovery-namespace={namespace}",
        "--worker-startup-timeout-secs=20",
        "--worker-startup-check-interval=1",
        "--log-level=warning",
    ]
