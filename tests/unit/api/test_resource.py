"""The models read what the API server stores, and their defaults are the CRD's."""

from typing import Any

import pytest
from disagg_operator.api.crd import build_crd
from disagg_operator.api.resource import DisaggregatedInference, Spec
from pydantic import ValidationError

Json = dict[str, Any]
MINIMAL: Json = {"metadata": {"name": "llama", "namespace": "default"}, "spec": {"model": {"uri": "hf://a/b"}}}


def test_a_resource_as_stored_and_one_without_defaults_read_the_same() -> None:
    """So a test may leave defaults out, and an older CRD that lacks a field does no harm."""
    spec = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    filled = fill(spec, {"model": {"uri": "hf://a/b"}})
    assert DisaggregatedInference.from_object({**MINIMAL, "spec": filled}) == DisaggregatedInference.from_object(
        MINIMAL
    )
    assert filled["decode"]["rollout"] == {"maxSurge": 1, "maxUnavailable": 0}


def fill(schema: Json, value: Any) -> Any:
    """Defaults filled in as the API server does it."""
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, child in schema.get("properties", {}).items():
        if name not in filled and "default" in child:
            filled[name] = child["default"]
        if name in filled:
            filled[name] = fill(child, filled[name])
    return filled


def test_unknown_fields_are_ignored() -> None:
    """A newer CRD may have let them in."""
    newer = {**MINIMAL, "spec": {**MINIMAL["spec"], "later": 1, "decode": {"later": {"x": 2}}}, "kind": "Whatever"}
    assert DisaggregatedInference.from_object(newer).spec == DisaggregatedInference.from_object(MINIMAL).spec


def test_raw_parts_are_kept_as_they_are() -> None:
    raw = {"spec": {"containers": [{"name": "engine", "newField": {"camelCase": 1, "snake_case": 2}}]}}
    spec = {**MINIMAL["spec"], "decode": {"template": raw}, "kvStore": {"config": {"global_segment_size": "4GB"}}}
    read = DisaggregatedInference.from_object({**MINIMAL, "spec": spec}).spec
    assert read.decode.template == raw
    assert read.kv_store.config == {"global_segment_size": "4GB"}


def test_sizes_and_counts_keep_their_type() -> None:
    spec = {**MINIMAL["spec"], "kvStore": {"segmentSize": 42949672960}, "decode": {"rollout": {"maxSurge": "25%"}}}
    read = DisaggregatedInference.from_object({**MINIMAL, "spec": spec}).spec
    assert (read.kv_store.segment_size, read.decode.rollout.max_surge) == (42949672960, "25%")


def test_a_resource_cannot_be_changed_in_place() -> None:
    resource = DisaggregatedInference.from_object(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        resource.spec.restart = "now"  # type: ignore[misc]


def test_without_a_model_there_is_an_error_that_names_it() -> None:
    with pytest.raises(ValidationError, match=r"spec\.model"):
        DisaggregatedInference.from_object({"metadata": MINIMAL["metadata"], "spec": {}})


def test_every_part_but_the_model_has_a_default() -> None:
    assert [name for name, field in Spec.model_fields.items() if field.is_required()] == ["model"]
