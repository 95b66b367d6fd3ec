"""What pods are, for each version of the templates: digests that are on record and do not change.

A resource is built with the version that it was recorded with. So a builder that makes anything else of an old version
restarts that resource's pods when its operator is upgraded. docs/adr/0006-pins.md.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from disagg_operator.build.digests import digest
from disagg_operator.build.inputs import TEMPLATE_VERSION, Pins
from unit.build.rubric import templates
from unit.build.samples import EXAMPLES, PINS, build, read_examples

RECORDS = Path(__file__).parent / "template_versions"
Record = dict[str, Any]

PROMISE = (
    "pods of template version {version} are no longer what they were, so an upgrade of the operator would restart them "
    "for every resource that is recorded with it: {changed}. Raise TEMPLATE_VERSION in build/inputs.py, and build the "
    "old templates where pins.template_version is {version} or less. Only if no operator with version {version} was "
    "ever released: delete {path} and run `make golden`"
)


def record_of(example: Path, pins: Pins) -> Record:
    """Digests of every pod template of an example, and of the example itself, as it is written."""
    bodies = [body for body in yaml.safe_load_all(example.read_text()) if body]
    pods = {
        f"{resource.metadata.name}: {where}": digest(template)
        for resource in read_examples(example)
        for where, template in templates(build(resource, pins=pins).children)
    }
    return {"example": digest(bodies), "pods": pods}


def find_changed(known: dict[str, Record], built: dict[str, Record]) -> list[str]:
    """Pods that are on record and that the same example gives in another form, or no more."""
    return [
        f"{example}: {pod}"
        for example, record in known.items()
        if example in built and built[example]["example"] == record["example"]
        for pod, was in record["pods"].items()
        if built[example]["pods"].get(pod) != was
    ]


@pytest.mark.parametrize("version", range(1, TEMPLATE_VERSION + 1))
def test_pods_of_a_template_version_stay_what_they_are(version: int, update_golden: bool) -> None:
    built = {example.stem: record_of(example, replace(PINS, template_version=version)) for example in EXAMPLES}
    path = RECORDS / f"{version}.json"
    known: dict[str, Record] = json.loads(path.read_text()) if path.exists() else {}
    changed = find_changed(known, built)
    assert not changed, PROMISE.format(version=version, changed=", ".join(changed), path=path.name)
    if update_golden:
        # New and edited examples only: what is on record of the others was just seen to hold.
        path.write_text(json.dumps(built, indent=2, sort_keys=True) + "\n")
        known = built
    assert known == built, f"examples came, went or were edited: run `make golden` to have them in {path.name}"


def test_a_changed_builder_is_told_and_an_edited_example_is_not() -> None:
    known = {"minimal": {"example": "a", "pods": {"llama: decode": "1", "llama: router": "2"}}}
    changed = {"minimal": {"example": "a", "pods": {"llama: decode": "9"}}}
    assert find_changed(known, changed) == ["minimal: llama: decode", "minimal: llama: router"]
    edited = {"minimal": {"example": "b", "pods": {"llama: decode": "9"}}}
    assert find_changed(known, edited) == []


def test_there_is_a_record_of_each_version() -> None:
    assert {path.stem for path in RECORDS.iterdir()} == {str(number) for number in range(1, TEMPLATE_VERSION + 1)}
