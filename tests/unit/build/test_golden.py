"""Every example's children, as files to review: `make golden` rewrites them, the diff is the review."""

from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from disagg_operator.build.inputs import Manifest
from disagg_operator.build.problems import find_problems
from unit.build.pod_security import find_violations
from unit.build.rubric import RULES, Rule, templates
from unit.build.samples import EXAMPLES, FACTS, PINS, ROOT, build, read_examples

GOLDEN = ROOT / "tests" / "golden"
# Kinds whose schema is not Kubernetes' own.
FOREIGN = {"PodMonitor", "LeaderWorkerSet", "DisaggregatedInferenceScaler", "ScaledObject"}

examples = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


def children_of(example: Path) -> list[Manifest]:
    return [child for resource in read_examples(example) for child in build(resource).children]


@examples
def test_example_builds_what_its_golden_file_says(example: Path, update_golden: bool) -> None:
    text = yaml.safe_dump_all(children_of(example), sort_keys=False, width=1000)
    golden = GOLDEN / example.stem / "expected.yaml"
    if update_golden:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert golden.exists(), f"no golden file for {example.name}; run `make golden` and review it"
    assert text == golden.read_text()


def test_every_golden_file_has_an_example() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {path.stem for path in EXAMPLES}


@examples
def test_example_has_no_problems(example: Path) -> None:
    resources = read_examples(example)
    assert resources, f"{example.name} holds no DisaggregatedInference"
    for resource in resources:
        assert find_problems(resource, PINS, FACTS) == ()


@examples
def test_children_fit_kubernetes_schemas(example: Path) -> None:
    for child in children_of(example):
        if child["kind"] not in FOREIGN:
            kubernetes_validate.validate(child, "1.37", strict=True)


@examples
def test_pods_of_leader_worker_sets_fit_kubernetes_schemas(example: Path) -> None:
    for _, template in templates(children_of(example)):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]}
        kubernetes_validate.validate(pod, "1.37", strict=True)


@examples
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_children_pass_the_rubric(example: Path, rule: Rule) -> None:
    assert list(rule(children_of(example))) == []


@examples
def test_pods_are_restricted_unless_rdma_asks_for_more(example: Path) -> None:
    for resource in read_examples(example):
        for where, template in templates(build(resource).children):
            asks = resource.spec.kv_store.rdma is not None and ("prefill" in where or "decode" in where)
            if not asks:
                assert find_violations(template["spec"]) == [], where
