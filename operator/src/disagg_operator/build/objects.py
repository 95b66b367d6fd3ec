"""The outside of every child: names, labels, owner. A child differs from another only in its body."""

import json
from typing import Any

from disagg_operator.api.names import API_VERSION, KIND, Component, object_labels
from disagg_operator.build.inputs import Context, Manifest


def build_object(
    context: Context, api_version: str, kind: str, name: str, component: Component | None, **body: Any
) -> Manifest:
    """A child with labels and its owner; `body` are the object's other top-level fields."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": context.namespace,
            "labels": object_labels(context.name, component),
            "ownerReferences": [build_owner_reference(context)],
        },
        **body,
    }


def build_owner_reference(context: Context) -> Manifest:
    """The reference by which the garbage collector removes a child, with the operator running or not."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": context.name,
        "uid": context.resource.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def compact(**fields: Any) -> Manifest:
    """The given fields without those that say nothing (None, empty lists, maps and strings).

    Server-side apply takes a null for a wish and owns an empty map, so neither may be sent by accident.
    """
    return {key: value for key, value in fields.items() if value is not None and value not in ([], {}, (), "")}


def make_plain(manifest: Manifest) -> Manifest:
    """The same object as the API server would give it: plain JSON, no part shared with another object."""
    plain: Manifest = json.loads(json.dumps(manifest))
    return plain
