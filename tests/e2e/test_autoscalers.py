"""Real autoscalers on real engines: Kubernetes' own by CPU use, KEDA by the metrics of vLLM and of the router.

What is asked for is applied by the resource alone, or by `kubectl autoscale`; the counts then are the autoscalers'.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import yaml
from cluster import binaries
from demo.client import Answer, call, counters
from demo.cluster import NAMESPACE as OPERATOR_NAMESPACE
from demo.cluster import RELEASE, ROOT, Cluster
from demo.kubectl import Manifest, condition, wait_until
from e2e import autoscalers, load
from e2e.audit import Mutation, mutations
from e2e.stack import MODEL, READY_TIMEOUT, Served, example, serve
from results import RESULTS, read_results, write_results

pytestmark = pytest.mark.long
NAMESPACE, NAME = "e2e-autoscalers", "scaled"
DECODE = f"{NAME}-decode"
OPERATOR = f"{RELEASE}-disaggregated-inference-operator"
# An autoscaler waits five minutes by default before it scales in.
SOON = {"scaleDown": {"stabilizationWindowSeconds": 30}}
BY_CPU: Manifest = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 40}},
}
RUNNING = "vllm:num_requests_running"
BY_RUNNING: Manifest = {
    "type": "metrics-api",
    "metadata": {
        "url": f"http://{DECODE}.{NAMESPACE}.svc:8000/metrics",
        "format": "prometheus",
        "valueLocation": RUNNING,
        "aggregateFromKubeServiceEndpoints": "true",
        "aggregationType": "sum",
        "targetValue": "1",
    },
}
# Most of a request's time is decode's.
BUSY: dict[str, Any] = {"threads": 4, "sentences": 6, "max_tokens": 96, "ignore_eos": True, "longest": READY_TIMEOUT}
COOLDOWN = 60
IDLE = 3 * COOLDOWN


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    resource = example(NAME)
    # What the utilization is a part of: an idle engine is far below the target, a busy one far above.
    resource["spec"]["decode"]["resources"]["requests"]["cpu"] = "400m"
    with serve(cluster, NAMESPACE, resource) as up:
        yield up


@pytest.fixture(scope="module", name="metrics_server")
def serve_cpu_use(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with autoscalers.installed(cluster.kubectl, autoscalers.METRICS_SERVER, tmp_path_factory.mktemp("metrics-server")):
        yield


@pytest.fixture(scope="module", name="prometheus")
def read_routers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with autoscalers.installed(cluster.kubectl, autoscalers.PROMETHEUS, tmp_path_factory.mktemp("prometheus")):
        yield


@pytest.fixture(scope="module", name="keda")
def run_keda(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with autoscalers.installed(served.kubectl, autoscalers.KEDA, tmp_path_factory.mktemp("keda")):
        yield
        write_counts(served)
        # Nobody else lets them go.
        wait_until(lambda: not scaled_objects(served), timeout=120, what="KEDA's objects are gone")


@pytest.fixture
def fresh(served: Served) -> Served:
    """One pod of each role, its count written into the resource."""
    write_counts(served)
    served.wait_for("Ready", "True", reason="Ready")
    return served


def write_counts(served: Served) -> None:
    written = {"replicas": 1, "scaling": None}
    served.edit(prefill=written, decode=written)


def scaled_objects(served: Served) -> list[Manifest]:
    return served.kubectl.items("scaledobjects", NAMESPACE)


@dataclass(frozen=True)
class Sight:
    """Replicas of both roles, wished and ready, and what the resource says of its health."""

    prefill: tuple[int, int]
    decode: tuple[int, int]
    degraded: str


def look(served: Served) -> Sight:
    """How it is now."""
    names = (f"deployment/{NAME}-prefill", f"deployment/{NAME}-decode", f"dinf/{NAME}")
    prefill, decode, resource = json.loads(served.kubectl.run("get", *names, "-n", NAMESPACE, "-o", "json"))["items"]
    degraded = condition(resource, "Degraded")
    return Sight(counts_of(prefill), counts_of(decode), f"{degraded.get('status')} {degraded.get('reason')}")


def counts_of(deployment: Manifest) -> tuple[int, int]:
    """Replicas of a Deployment: wished and ready."""
    return deployment["spec"]["replicas"], deployment.get("status", {}).get("readyReplicas", 0)


@contextmanager
def watched(served: Served) -> Iterator[list[tuple[int, Sight]]]:
    """How it was whenever that changed while the block runs, each with the second since its begin."""
    seen: list[tuple[int, Sight]] = []
    stop, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        while not stop.wait(2):
            now = look(served)
            if not seen or now != seen[-1][1]:
                seen.append((round(time.monotonic() - begun), now))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()


def current_metrics(served: Served, autoscaler: str) -> list[Manifest]:
    """What a HorizontalPodAutoscaler says that it reads."""
    found = served.kubectl.get("hpa", autoscaler, NAMESPACE) or {}
    metrics: list[Manifest] = found.get("status", {}).get("currentMetrics") or []
    return [metric for metric in metrics if metric.get("type")]


def record(name: str, programs: tuple[str, ...], figures: dict[str, Any]) -> None:
    """Keep the figures of a full run, with the versions of what took part."""
    path = RESULTS / "e2e-autoscalers.json"
    results = read_results(path)
    versions = {program: binaries.pinned_version(program) for program in programs}
    results[name] = {**figures, "versions": versions}
    write_results(path, results)


def tell(seen: list[tuple[int, Sight]]) -> list[dict[str, Any]]:
    """What was seen, for the figures."""
    return [{"second": second, **asdict(sight)} for second, sight in seen]


def go_out_and_back(served: Served, autoscaler: str) -> dict[str, Any]:
    """Load brings a second decode pod, its end takes one away, and no request fails. Returns the figures of the run."""
    with watched(served) as seen:
        with load.running(served.url(), **BUSY) as busy:
            wait_until(lambda: look(served).decode[0] == 2, timeout=300, what="a second decode pod is wished")
            metrics = current_metrics(served, autoscaler)
            wait_until(lambda: look(served).decode == (2, 2), timeout=READY_TIMEOUT, what="it is ready")
            served.wait_for("Ready", "True", reason="Ready", timeout=60)
        with load.running(served.url(), threads=1, sentences=1, max_tokens=2, pause=5) as light:
            wait_until(lambda: look(served).decode == (1, 1), timeout=300, what="one decode pod is left")
            wait_until(lambda: len(served.pods("decode")) == 1, timeout=60, what="the other is on its way out")
            time.sleep(10)
    served.wait_for("Ready", "True", reason="Ready", timeout=60)
    assert metrics, "the autoscaler shows what it reads"
    assert busy.failures() + light.failures() == []
    assert busy.answers
    assert light.answers
    assert {sight.prefill[0] for _, sight in seen} == {1}, "the other role is left alone"
    return {
        "autoscaler_read": metrics,
        "seen": tell(seen),
        "requests": len(busy.answers) + len(light.answers),
        "failed_requests": len(busy.failures() + light.failures()),
    }


@pytest.mark.usefixtures("metrics_server")
def test_a_plain_autoscaler_moves_decode_by_its_cpu(fresh: Served, full_counts: bool) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 2, "metrics": [BY_CPU], "behavior": SOON}
    fresh.edit(decode={"replicas": None, "scaling": scaling})
    wait_until(lambda: current_metrics(fresh, DECODE), timeout=300, what="the autoscaler reads metrics-server")
    figures = go_out_and_back(fresh, DECODE)
    assert figures["autoscaler_read"][0]["resource"]["current"]["averageUtilization"] > 40
    if full_counts:
        record("cpu, by spec.decode.scaling.metrics", ("metrics-server",), figures)


@pytest.mark.usefixtures("metrics_server")
def test_kubectl_autoscale_moves_decode_by_its_cpu(fresh: Served, full_counts: bool) -> None:
    fresh.edit(decode={"replicas": None, "scaling": {}})
    wait_until(lambda: fresh.kubectl.get("dinfs", DECODE, NAMESPACE), timeout=60, what="the scaler")
    fresh.kubectl.run("autoscale", f"dinfs/{DECODE}", "-n", NAMESPACE, "--min=1", "--max=2", "--cpu=40%")
    try:
        fresh.kubectl.patch("hpa", DECODE, NAMESPACE, {"spec": {"behavior": SOON}})
        wait_until(lambda: current_metrics(fresh, DECODE), timeout=300, what="the autoscaler reads metrics-server")
        figures = go_out_and_back(fresh, DECODE)
    finally:
        fresh.kubectl.run("delete", "hpa", DECODE, "-n", NAMESPACE)
    if full_counts:
        record("cpu, by kubectl autoscale", ("metrics-server",), figures)


@pytest.mark.usefixtures("keda")
def test_keda_takes_over_and_moves_decode_by_what_vllm_counts(fresh: Served, full_counts: bool) -> None:
    """From another autoscaler, beside which KEDA's webhook takes no ScaledObject."""
    bounds = {"minReplicas": 1, "maxReplicas": 2}
    fresh.edit(decode={"replicas": None, "scaling": {**bounds, "metrics": [BY_CPU]}})
    wait_until(lambda: fresh.kubectl.get("hpa", DECODE, NAMESPACE), timeout=60, what="a plain autoscaler")
    horizontal = {"horizontalPodAutoscalerConfig": {"behavior": SOON}}
    keda = {"pollingInterval": 5, "triggers": [BY_RUNNING], "advanced": horizontal}
    fresh.edit(decode={"scaling": {**bounds, "metrics": None, "keda": keda}})
    wait_until(lambda: scaled_object_is_ready(fresh, "decode"), timeout=120, what="KEDA takes the ScaledObject")
    assert fresh.kubectl.get("hpa", DECODE, NAMESPACE) is None
    figures = go_out_and_back(fresh, f"keda-hpa-{DECODE}")
    assert "external" in figures["autoscaler_read"][0]
    if full_counts:
        record(f"keda metrics-api, {RUNNING}", ("keda",), figures)


def scaled_object_is_ready(served: Served, role: str) -> bool:
    found = served.kubectl.get("scaledobject", f"{NAME}-{role}", NAMESPACE)
    return condition(found, "Ready").get("status") == "True"


def example_triggers() -> list[Manifest]:
    """The triggers of examples/keda.yaml, which ask Prometheus for the router's metrics, for this test's resource."""
    text = (ROOT / "examples" / "keda.yaml").read_text()
    for theirs, ours in {'namespace="default"': f'namespace="{NAMESPACE}"', '="llama"': f'="{NAME}"'}.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    triggers: list[Manifest] = yaml.safe_load(text)["spec"]["decode"]["scaling"]["keda"]["triggers"]
    return triggers


@pytest.mark.usefixtures("keda", "prometheus")
def test_both_roles_sleep_and_demand_wakes_them(cluster: Cluster, fresh: Served, full_counts: bool) -> None:
    """Field case C85: with both roles at zero the model is listed, a request gets 503, and that demand wakes them."""
    keda = {"pollingInterval": 5, "cooldownPeriod": COOLDOWN, "triggers": example_triggers()}
    asleep = {"replicas": None, "scaling": {"minReplicas": 0, "maxReplicas": 1, "keda": keda}}
    with watched(fresh) as seen:
        fresh.edit(prefill=asleep, decode=asleep)
        wait_until(lambda: both(fresh, (0, 0)), timeout=COOLDOWN + 240, what="both roles are at zero")
        fresh.wait_for("Ready", "True", reason="Suspended", timeout=60)
        time.sleep(IDLE / 2)
        start = time.time()
        time.sleep(IDLE / 2)
        assert both(fresh, (0, 0)), "nothing but demand wakes them"
        assert written_since(cluster, start) == [], "KEDA looks again and again, and the operator has nothing to write"
        assert_asleep_and_well(fresh)
        unserved = unserved_requests(fresh)
        refusals = refused_until_answered(fresh)
        assert unserved_requests(fresh) == unserved + len(refusals)
        with load.running(fresh.url(), threads=1, sentences=5, pause=1, longest=READY_TIMEOUT) as light:
            wait_until(lambda: both(fresh, (1, 1)), timeout=READY_TIMEOUT, what="both roles are back")
            fresh.wait_for("Ready", "True", reason="Ready", timeout=60)
            fresh.wait_for("Degraded", "False", timeout=60)
            fresh.wait_for("KVSharing", "True", timeout=120)
    assert light.failures() == []
    assert refusals, "the first request found nobody"
    assert {(answer.status, answer.json()["error"]["code"]) for answer in refusals} == {(503, "no_decode_engine")}
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refusals)
    if full_counts:
        figures = {
            "idle_seconds": IDLE,
            "cooldown_seconds": COOLDOWN,
            "refused_with_503": len(refusals),
            "requests": len(light.answers),
            "failed_requests": len(light.failures()),
            "seen": tell(seen),
        }
        record("keda prometheus, both roles to zero and back", ("keda", "prometheus"), figures)


def written_since(cluster: Cluster, start: float) -> list[Mutation]:
    """What the operator wrote, its Lease left out."""
    written = mutations(cluster, OPERATOR_NAMESPACE, OPERATOR, since=start)
    return [entry for entry in written if entry.resource != "leases"]


def both(served: Served, counts: tuple[int, int]) -> bool:
    """Whether both roles have these counts, wished and ready."""
    now = look(served)
    return now.prefill == now.decode == counts


def assert_asleep_and_well(served: Served) -> None:
    for kind, status in {"Ready": "True", "Available": "False", "Degraded": "False", "ScalingLimited": "False"}.items():
        found = served.condition(kind)
        assert found["status"] == status, found
    models = call(f"{served.url()}/v1/models")
    assert (models.status, [model["id"] for model in models.json()["data"]]) == (200, [MODEL])


def unserved_requests(served: Served) -> float:
    """Requests that the router has counted as demand without an engine."""
    name = "disagg_router_unserved_requests"
    pods = served.pods("router")
    return sum(counters(f"http://{pod['status']['podIP']}:9090", name)[name] for pod in pods)


def refused_until_answered(served: Served) -> list[Answer]:
    """Ask as a client does that heeds Retry-After, until there is an answer. Returns the refusals before it."""
    refusals: list[Answer] = []

    def ask() -> bool:
        answer = call(f"{served.url()}/v1/chat/completions", load.body(len(refusals)))
        if answer.status == 200:
            return True
        refusals.append(answer)
        time.sleep(int(answer.headers.get("Retry-After", 1)))
        return False

    wait_until(ask, timeout=READY_TIMEOUT, what="a request is answered")
    return refusals
