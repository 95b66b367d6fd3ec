"""Who scaled a workload itself is told where to scale instead."""

from typing import Any

import pytest
from disagg_operator.api.names import FIELD_MANAGER
from disagg_operator.plan.changes import Changes, object_key
from disagg_operator.plan.drift import find_scaled_elsewhere
from unit.build.samples import build, child, make

Json = dict[str, Any]


def changes(spec: Json, name: str, replicas: int, by: str) -> Changes:
    """A Deployment that is about to be applied, and the live one with a count of somebody's."""
    wanted = child(build(make(spec)), "Deployment", name)
    entry = {"manager": by, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    live = {**wanted, "metadata": {**wanted["metadata"], "managedFields": [entry]}, "spec": {"replicas": replicas}}
    return Changes(applies=(wanted,), live={object_key(wanted): live})


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ({"decode": {"replicas": 2}}, "set spec.decode.replicas"),
        ({"decode": {"scaling": {}}}, "scale dinfs/llama-decode"),
    ],
)
def test_it_names_what_was_found_what_it_goes_back_to_and_where_to_scale(spec: Json, remedy: str) -> None:
    (event,) = find_scaled_elsewhere(make(spec), changes(spec, "llama-decode", 9, "their-hpa"))
    wanted = spec["decode"].get("replicas", 1)
    assert (event.type, event.reason) == ("Warning", "ScaledElsewhere")
    assert f"to 9 by their-hpa and is put back to {wanted}; {remedy}" in event.message


def test_a_change_of_our_own_or_of_another_field_is_none() -> None:
    spec: Json = {"decode": {"replicas": 2}}
    assert not list(find_scaled_elsewhere(make(spec), changes(spec, "llama-decode", 9, FIELD_MANAGER)))
    assert not list(find_scaled_elsewhere(make(spec), changes(spec, "llama-decode", 2, "somebody")))
    fresh = Changes(applies=changes(spec, "llama-decode", 2, "somebody").applies)
    assert not list(find_scaled_elsewhere(make(spec), fresh))
