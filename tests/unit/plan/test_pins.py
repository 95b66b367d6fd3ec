"""Which images a resource is built with: the recorded ones, until its user changes more than a count."""

from dataclasses import replace
from typing import Any

import pytest
from disagg_operator.api.resource import DisaggregatedInference
from disagg_operator.plan.pins import decide_pins, is_same_wish, without_counts
from unit.build.samples import PINS, make

NEW = replace(PINS, images=replace(PINS.images, engine_cuda="registry.example/disagg/engine-cuda:2.0.0"))
Record = dict[str, Any]


def first(spec: dict[str, Any] | None = None) -> Record:
    """The record that a resource gets at first sight."""
    (record,) = decide_pins(make(spec, generation=1), [], PINS).records
    return record


def later(spec: dict[str, Any] | None = None) -> DisaggregatedInference:
    return make(spec, generation=2)


def test_the_first_sight_is_recorded() -> None:
    decision = decide_pins(make(generation=1), [], PINS)
    assert decision.pins == PINS
    (record,) = decision.records
    assert record["revision"] == 1
    assert record["metadata"]["name"].startswith("llama-")
    assert record["metadata"]["ownerReferences"][0]["controller"] is True


def test_a_new_operator_changes_nothing() -> None:
    record = first()
    decision = decide_pins(make(generation=1), [record], NEW)
    assert decision.pins == PINS
    assert decision.records == (record,), "the record is wanted as it is, so it is neither written nor pruned"


@pytest.mark.parametrize(
    "spec",
    [
        {"prefill": {"replicas": 7}},
        {"decode": {"replicas": 0}},
        {"decode": {"scaling": {"minReplicas": 2}}},
        {"router": {"replicas": 3}},
        {"prefill": {"scaling": {}}, "scaling": {"ratio": {"min": 0.5}}},
    ],
    ids=str,
)
def test_a_count_changes_nothing(spec: dict[str, Any]) -> None:
    assert decide_pins(later(spec), [first()], NEW).pins == PINS


@pytest.mark.parametrize(
    "spec",
    [
        {"restart": "now"},
        {"engine": {"args": ["--max-model-len", "1024"]}},
        {"decode": {"env": [{"name": "A", "value": "1"}]}},
        {"kvStore": {"config": {"x": 1}}},
        {"router": {"service": {"annotations": {"a": "b"}}}},
        {"model": {"uri": "hf://org/other"}},
    ],
    ids=str,
)
def test_any_other_change_takes_up_the_present_ones_and_so_does_its_undoing(spec: dict[str, Any]) -> None:
    there = [first()]
    decision = decide_pins(later(spec), there, NEW)
    assert decision.pins == NEW
    assert [record["revision"] for record in decision.records] == [1, 2]
    back = decide_pins(make(generation=3), list(decision.records), PINS)
    assert back.pins == PINS
    assert [record["revision"] for record in back.records] == [1, 2, 3]


def orphan(spec: dict[str, Any] | None = None) -> Record:
    """A record that an earlier resource of this name left behind."""
    record = first(spec)
    return {**record, "metadata": {**record["metadata"], "ownerReferences": []}}


@pytest.mark.parametrize("generation", [1, 2])
def test_a_resource_that_comes_again_with_the_same_wish_keeps_what_its_pods_were_built_with(generation: int) -> None:
    decision = decide_pins(make(generation=generation), [orphan()], NEW)
    assert decision.pins == PINS
    newest = decision.records[-1]
    assert (newest["revision"], newest["data"]["generation"]) == (2, generation)
    assert newest["metadata"]["ownerReferences"], "it has an owner again"


def test_a_resource_that_comes_again_with_another_wish_takes_up_the_present_ones() -> None:
    """Though its generation is that of the record."""
    assert decide_pins(make({"restart": "x"}, generation=1), [orphan()], NEW).pins == NEW


def test_the_order_of_records_does_not_matter() -> None:
    records = list(decide_pins(later({"restart": "x"}), [first()], NEW).records)
    for given in (records, records[::-1]):
        assert decide_pins(later({"restart": "x"}), given, PINS).pins == NEW


def test_old_records_go() -> None:
    records: list[Record] = []
    for number in range(6):
        resource = make({"restart": str(number), "revisionHistoryLimit": 2}, generation=number + 1)
        records = list(decide_pins(resource, records, PINS).records)
    assert [record["revision"] for record in records] == [4, 5, 6]


def test_no_record_is_kept_where_none_is_wished() -> None:
    records = [first({"revisionHistoryLimit": 0})]
    resource = make({"revisionHistoryLimit": 0, "restart": "x"}, generation=2)
    assert [record["revision"] for record in decide_pins(resource, records, PINS).records] == [2]


def test_a_field_that_came_with_a_new_operator_is_no_change() -> None:
    record = first({"decode": {"env": [{"name": "A", "value": "1"}]}})
    for part in (record["data"]["spec"], record["data"]["spec"]["decode"]):
        known = next(key for key, value in part.items() if value in (5, 0, 60))
        del part[known]
    resource = make({"decode": {"env": [{"name": "A", "value": "1"}], "replicas": 2}}, generation=2)
    assert decide_pins(resource, [record], NEW).pins == PINS


def test_a_new_field_that_is_used_is_a_change() -> None:
    record = first()
    del record["data"]["spec"]["progressDeadlineSeconds"]
    assert decide_pins(later({"progressDeadlineSeconds": 60}), [record], NEW).pins == NEW


def test_a_field_that_the_operator_knows_no_more_is_no_change() -> None:
    record = first()
    record["data"]["spec"]["gone"] = {"a": 1}
    assert decide_pins(later({"prefill": {"replicas": 2}}), [record], NEW).pins == PINS


def test_a_default_that_changed_is_no_change_where_the_old_one_is_stored() -> None:
    spec = without_counts(make({"progressDeadlineSeconds": 600}).spec)
    recorded = spec.model_dump(by_alias=True, mode="json")
    assert is_same_wish(recorded, spec)


def test_an_entry_of_a_users_map_that_went_is_a_change() -> None:
    before = {"router": {"service": {"annotations": {"a": "b"}}}}
    assert decide_pins(later(), [first(before)], NEW).pins == NEW
