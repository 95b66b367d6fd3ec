"""Which images and template version a resource is built with: those recorded for it, until its user changes it.

A record is a ControllerRevision. It holds the pins, the spec that they were chosen for, and the patch that brings this
spec back. So a new operator, chart or
default restarts nobody's engines: it is taken up at the next change of the spec that is more than a replica count, or
at a new `spec.restart`. docs/adr/0006-pins.md.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import BaseModel

from disagg_operator.api.names import object_labels
from disagg_operator.api.resource import DisaggregatedInference, Spec
from disagg_operator.build.inputs import ClusterFacts, Context, Images, Pins
from disagg_operator.build.objects import build_owner_reference
from disagg_operator.plan.ownership import owner_uid

Manifest = dict[str, Any]
# Parts of the spec with counts in them, and the fields that are no part of a revision.
_COUNTED: Final = frozenset({"prefill", "decode", "router"})
_COUNTS: Final = frozenset({"replicas", "scaling"})
_OUTSIDE: Final = frozenset({"scaling", "paused"})


@dataclass(frozen=True)
class PinDecision:
    """The pins to build with, and the records to keep, oldest first."""

    pins: Pins
    records: tuple[Manifest, ...]


def decide_pins(resource: DisaggregatedInference, records: Iterable[Manifest], current: Pins) -> PinDecision:
    """Keep the newest record's pins while the user's wish is the same; else record the operator's `current` ones.

    `records` are this resource's ControllerRevisions, in any order. Those that an earlier resource of its name left
    behind have no owner.
    """
    kept = sorted(records, key=lambda record: int(record["revision"]))
    wanted = [_as_wanted(resource, record) for record in kept]
    pins, number = current, 1
    if kept:
        newest, number = kept[-1], int(kept[-1]["revision"]) + 1
        is_own = owner_uid(newest) == resource.metadata.uid
        is_same = is_same_wish(newest["data"]["spec"], without_counts(resource.spec))
        # Nobody has changed anything in one generation, whatever a newer operator makes of the words.
        if is_own and (is_same or newest["data"]["generation"] == resource.metadata.generation):
            return PinDecision(read_pins(newest["data"]), tuple(wanted))
        if not is_own and is_same:
            pins = read_pins(newest["data"])
    spec = without_counts(resource.spec).model_dump(by_alias=True, mode="json")
    data = {
        "pins": asdict(pins),
        "spec": spec,
        "undo": build_undo(resource.spec),
        "generation": resource.metadata.generation,
    }
    first = max(0, len(wanted) - resource.spec.revision_history_limit)
    return PinDecision(pins, (*wanted[first:], build_record(resource, number, data)))


def without_counts(spec: Spec) -> Spec:
    """The wish without what scales, and without a pause."""
    parts: dict[str, Any] = {
        "prefill": spec.prefill.model_copy(update={"replicas": None, "scaling": None}),
        "decode": spec.decode.model_copy(update={"replicas": None, "scaling": None}),
        "router": spec.router.model_copy(update={"replicas": 1}),
        "scaling": None,
        "paused": False,
    }
    return spec.model_copy(update=parts)


def build_undo(spec: Spec) -> list[Manifest]:
    """The JSON patch that makes any later spec this one again, but for counts and a pause.

    Each field is set as a whole, so that what was added inside it goes. A null takes a field away or back to its
    default: the API server drops nulls.
    """
    patch: list[Manifest] = []
    for name, key in _aliases(spec):
        if key in _COUNTED:
            patch += _undo_fields(getattr(spec, name), f"/spec/{key}", _COUNTS)
    return _undo_fields(spec, "/spec", _OUTSIDE | _COUNTED) + patch


def _undo_fields(part: BaseModel, path: str, left_out: frozenset[str]) -> list[Manifest]:
    written = part.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    keys = [key for _, key in _aliases(part) if key not in left_out]
    return [{"op": "add", "path": f"{path}/{key}", "value": written.get(key)} for key in keys]


def _aliases(part: BaseModel) -> list[tuple[str, str]]:
    """Names of a model's fields, here and in YAML."""
    return [(name, field.alias or name) for name, field in type(part).model_fields.items()]


def is_same_wish(recorded: Any, present: Any) -> bool:
    """Whether a recorded wish (plain JSON, all defaults written out) and the present one are the same.

    A field that the record does not know yet must be at its default; one that this operator knows no more counts for
    nothing. So a field or a default that comes with a new operator is no change by the user.
    """
    if isinstance(present, BaseModel) and isinstance(recorded, dict):
        for name, field in type(present).model_fields.items():
            value, key = getattr(present, name), field.alias or name
            if key not in recorded:
                if value != field.get_default(call_default_factory=True, validated_data={}):
                    return False
            elif not is_same_wish(recorded[key], value):
                return False
        return True
    if isinstance(present, list) and isinstance(recorded, list):
        return len(present) == len(recorded) and all(map(is_same_wish, recorded, present))
    return bool(recorded == present)


def read_pins(data: Manifest) -> Pins:
    """The pins in a record."""
    return Pins(Images(**data["pins"]["images"]), data["pins"]["template_version"])


def build_record(resource: DisaggregatedInference, number: int, data: Manifest) -> Manifest:
    """A ControllerRevision. Its data is immutable, so its name has the data's digest."""
    name = resource.metadata.name
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{name}-{_digest(data)}",
            "namespace": resource.metadata.namespace,
            "labels": object_labels(name),
            "ownerReferences": [build_owner_reference(Context(resource, read_pins(data), ClusterFacts()))],
        },
        "revision": number,
        "data": data,
    }


def _as_wanted(resource: DisaggregatedInference, record: Manifest) -> Manifest:
    """A record that is there, as it would be built: so that it is kept, and repaired when somebody changed it."""
    return build_record(resource, int(record["revision"]), record["data"])


def _digest(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
