"""Resources and cluster facts that the builders' tests start from."""

from pathlib import Path
from typing import Any

import yaml
from disagg_operator.api.names import Component
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.build.desired import build_desired
from disagg_operator.build.inputs import ClusterFacts, Desired, Images, Manifest, Pins
from disagg_operator.build.problems import find_problems
from disagg_operator.plan.counts import decide_counts
from mooncake_store_connector.problems import Problem

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
UID = "11111111-2222-3333-4444-555555555555"

PINS = Pins(
    Images(
        engine_cuda="registry.example/disagg/engine-cuda:1.0.0",
        engine_cpu="registry.example/disagg/engine-cpu:1.0.0",
        store="registry.example/disagg/store:1.0.0",
        router="registry.example/disagg/router:1.0.0",
    )
)
FACTS = ClusterFacts(
    operator_namespace="disagg-system",
    has_pod_monitor=True,
    has_leader_worker_set=True,
    has_scaler=True,
    has_scaled_object=True,
)


def make(spec: dict[str, Any] | None = None, *, name: str = "llama", **metadata: Any) -> DisaggregatedInference:
    """A resource with the given fields of spec; a model is filled in."""
    full = {"model": {"uri": "hf://org/model"}, **(spec or {})}
    meta = {"name": name, "namespace": "team-a", "uid": UID, **metadata}
    return DisaggregatedInference.from_object({"metadata": meta, "spec": full})


def read_examples(path: Path) -> list[DisaggregatedInference]:
    """The DisaggregatedInference objects of an example file, as the API server would give them."""
    found = []
    for body in yaml.safe_load_all(path.read_text()):
        if body and body["kind"] == "DisaggregatedInference":
            metadata = {"namespace": "default", "uid": UID, **body["metadata"]}
            found.append(DisaggregatedInference.from_object({**body, "metadata": metadata}))
    return found


def build(resource: DisaggregatedInference, facts: ClusterFacts = FACTS, pins: Pins = PINS) -> Desired:
    """Build a resource that must be without problems, as it is at first sight."""
    assert find_problems(resource, pins, facts) == ()
    return build_desired(resource, pins, facts, decide_counts(resource, []).counts)


def problems(
    spec: dict[str, Any] | None = None, *, facts: ClusterFacts = FACTS, pins: Pins = PINS, **kw: Any
) -> tuple[Problem, ...]:
    return find_problems(make(spec, **kw), pins, facts)


def only_problem(spec: dict[str, Any], *, facts: ClusterFacts = FACTS, pins: Pins = PINS, **kw: Any) -> Problem:
    """The one problem of a resource that has one."""
    found = problems(spec, facts=facts, pins=pins, **kw)
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]


def child(desired: Desired, kind: str, name: str) -> Manifest:
    """The child of that kind and name."""
    found = [c for c in desired.children if c["kind"] == kind and c["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: found {len(found)}"
    return found[0]


def has_child(desired: Desired, kind: str, name: str) -> bool:
    return any(c["kind"] == kind and c["metadata"]["name"] == name for c in desired.children)


def pod_spec(desired: Desired, component: Component | str, owner: str = "llama") -> dict[str, Any]:
    """The pod spec of one part's Deployment."""
    spec: dict[str, Any] = child(desired, "Deployment", f"{owner}-{component}")["spec"]["template"]["spec"]
    return spec


def container(desired: Desired, component: Component | str, name: str, owner: str = "llama") -> dict[str, Any]:
    pod = pod_spec(desired, component, owner)
    return next(c for c in [*pod.get("initContainers", []), *pod["containers"]] if c["name"] == name)


def engine(desired: Desired, role: Component | str = Component.PREFILL) -> dict[str, Any]:
    return container(desired, role, "engine")


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def flag(container: dict[str, Any], name: str) -> str | None:
    """The last value of a flag in a container's arguments, written as two words or as one."""
    args = container["args"]
    values = [args[i + 1] for i, arg in enumerate(args) if arg == name]
    values += [arg.partition("=")[2] for arg in args if arg.startswith(f"{name}=")]
    return values[-1] if values else None
