"""kstatus, Flux's copy of it, the health check for Argo CD and our condition Ready: one table for all states.

The same statuses are the check's test data: `pytest tests/api/operator_runs/gitops --update-golden` writes them, and
the diff is the review.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from api.manifests import resource
from api.operator_runs.gitops.states import STATES, behind
from api.operator_runs.gitops.tools import ArgoHealth, KStatus
from api.operator_runs.site import Site
from demo.kubectl import Kubectl, KubectlError
from unit.gitops.lua import SCRIPT, Health, ask_health

Json = dict[str, Any]
FOLDER = SCRIPT.parent
ARGO: Final = {
    "Current": "Healthy",
    "Failed": "Degraded",
    "InProgress": "Progressing",
    "Terminating": "Progressing",
}


def is_true(body: Json, kind: str) -> bool:
    """Whether a condition is True for the present generation of a resource that is to stay."""
    generation = body["metadata"]["generation"]
    return "deletionTimestamp" not in body["metadata"] and any(
        (condition["type"], condition["status"], condition["observedGeneration"]) == (kind, "True", generation)
        for condition in body["status"].get("conditions", [])
    )


@pytest.mark.parametrize("name", STATES)
def test_all_say_the_same_of_a_state(
    site: Site, kstatus: KStatus, argo_health: ArgoHealth, update_golden: bool, name: str
) -> None:
    state = STATES[name]
    body = state.make(site)
    (told,) = kstatus.judge(body)
    assert (told["status"], told["flux"]) == (state.kstatus, state.kstatus), told
    assert (told["status"] == "Current") == is_true(body, "Ready")
    assert (told["status"] == "Failed") == is_true(body, "Stalled")
    (health,) = argo_health.check(body)
    assert health["status"] == ARGO[state.kstatus]
    assert ask_health(body) == Health(**health), "Debian's Lua says what Argo CD's does"
    check_data(name, as_data(body, site.namespace), update_golden)


def check_data(name: str, body: Json, update_golden: bool) -> None:
    """Hold a state against the check's test data, or write them."""
    health = ask_health(body)
    path = f"testdata/{health.status.lower()}_{name}.yaml"
    case = {"healthStatus": {"status": health.status, "message": health.message}, "inputPath": path}
    if update_golden:
        write(FOLDER / path, body)
        others = [other for other in cases() if other["inputPath"] != path]
        write(FOLDER / "health_test.yaml", {"tests": sorted([*others, case], key=lambda one: str(one["inputPath"]))})
    assert yaml.safe_load((FOLDER / path).read_text()) == body, f"{path} is not what the operator writes now"
    assert case in cases()


def cases() -> list[Json]:
    tests: list[Json] = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]
    return tests


def write(path: Path, content: Json) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False, width=1000))


def as_data(body: Json, namespace: str) -> Json:
    """A resource without what differs from run to run, and without what no check looks at."""
    plain: Json = json.loads(json.dumps(body).replace(namespace, "models"), object_hook=_steady)
    plain["spec"] = {"model": plain["spec"]["model"]}
    plain["metadata"] = {
        key: value for key, value in plain["metadata"].items() if key not in ("managedFields", "resourceVersion", "uid")
    }
    return plain


def _steady(fields: Json) -> Json:
    times = dict.fromkeys(("creationTimestamp", "deletionTimestamp", "lastTransitionTime"), "2026-11-30T06:00:00Z")
    digests = dict.fromkeys(("kvRevision", "revision"), "0123456789")
    return {key: {**times, **digests}.get(key, value) for key, value in fields.items()}


def test_there_are_data_of_each_state_and_of_no_other() -> None:
    assert sorted(Path(case["inputPath"]).stem.partition("_")[2] for case in cases()) == sorted(STATES)


def test_kstatus_takes_what_has_no_status_for_finished(kstatus: KStatus) -> None:
    """So the CRD has a default for a status that is not there."""
    bare = resource("llama")
    unseen = {**bare, "metadata": {**bare["metadata"], "generation": 1}}
    by_default = {**unseen, "status": {"observedGeneration": -1}}
    assert [told["status"] for told in kstatus.judge(unseen, by_default)] == ["Current", "InProgress"]


def test_kubectl_wait_believes_no_condition_of_an_older_spec(site: Site, kubectl: Kubectl) -> None:
    wait = ("wait", "--for=condition=Ready", "dinf/llama", "-n", site.namespace)
    behind(site)
    with pytest.raises(KubectlError, match="timed out"):
        kubectl.run(*wait, "--timeout=2s")
    with site.operator():
        site.wait_quiet("llama")
        site.serve("llama")
        kubectl.run(*wait, "--timeout=30s")
