"""Which images and template version a resource is built with: those recorded for it, until its user changes it.

A record is a ControllerRevision. It holds the pins and the spec they were chosen for, replica counts left out. So a
new operator, chart or default restarts nobody's engines: it is taken up at the next change of the spec that is more
than a count, or at a new `spec.restart`. docs/adr/0006-pins.md.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from disagg_operator.api.names import object_labels
from disagg_operator.api.resource import DisaggregatedInference, Spec
from disagg_operator.build.inputs import ClusterFacts, Context, Images, Pins
from disagg_operator.build.objects import build_owner_reference

Manifest = dict[str, Any]
_COUNTS: Final = ("prefill", "decode", "router")


@dataclass(frozen=True)
class PinDecision:
    """The pins to build with, the records to keep, and whether newer ones wait for a change by the user."""

    pins: Pins
    records: tuple[Manifest, ...]
    is_update_available: bool


def spec_digest(spec: Spec) -> str:
    """Digest of what the user wishes, without replica counts and without fields at their default."""
    body = spec.model_dump(by_alias=True, mode="json", exclude_defaults=True)
    for part in _COUNTS:
        body.get(part, {}).pop("replicas", None)
    return _digest({key: value for key, value in body.items() if value != {}})


def decide_pins(resource: DisaggregatedInference, records: Iterable[Manifest], current: Pins) -> PinDecision:
    """Keep the newest record while the user's wish is the same; else record the operator's present pins.

    `records` are this resource's ControllerRevisions, in any order.
    """
    kept = sorted(records, key=lambda record: int(record["revision"]))
    digest = spec_digest(resource.spec)
    generation = resource.metadata.generation
    newest = kept[-1] if kept else None
    if newest is not None and _belongs(newest["data"], digest, generation):
        pins = read_pins(newest["data"])
        return PinDecision(pins, tuple(_as_wanted(resource, record) for record in kept), pins != current)
    number = int(newest["revision"]) + 1 if newest is not None else 1
    data = {"pins": asdict(current), "specDigest": digest, "generation": generation}
    record = build_record(resource, number, data)
    old = [_as_wanted(resource, entry) for entry in kept]
    limit = resource.spec.revision_history_limit
    return PinDecision(current, (*old[len(old) - limit if limit < len(old) else 0 :], record), False)


def _belongs(data: Manifest, digest: str, generation: int) -> bool:
    """Whether a record was made for this wish. The same generation means that no user has changed anything."""
    return bool(data["generation"] == generation or data["specDigest"] == digest)


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
