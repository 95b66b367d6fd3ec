"""Whether an object still has all that the operator applied, judged from the object alone.

The API server writes into `managedFields` which fields a manager owns. Whoever changes or removes a field of ours
takes it out of our entry. So an object is as applied when our entry lists exactly the fields of the manifest, and the
digest that we put into an annotation is that of the manifest. No dry run, no guess about defaults or spellings. The
same entry tells that an object without an owner was made by us.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

from disagg_operator.api.names import FIELD_MANAGER, GROUP

Manifest = dict[str, Any]
ANNOTATION_APPLIED: Final = f"{GROUP}/applied"


def with_digest(manifest: Manifest) -> Manifest:
    """The manifest with the annotation that tells what was applied."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_APPLIED: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def is_as_applied(manifest: Manifest, live: Manifest) -> bool:
    """Whether `live` has what applying `manifest` (with its digest) would give it."""
    digest = manifest["metadata"]["annotations"][ANNOTATION_APPLIED]
    if live["metadata"].get("annotations", {}).get(ANNOTATION_APPLIED) != digest:
        return False
    fields = our_fields(live)
    body = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in ("name", "namespace")}
    return fields is not None and _owns({**body, "metadata": metadata}, fields)


def controller_of(live: Manifest) -> Manifest:
    """The owner that controls an object; empty when there is none."""
    owners = live["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner.get("controller")), {})


def owner_uid(live: Manifest) -> str:
    """UID of the controlling owner; empty when there is none."""
    return str(controller_of(live).get("uid", ""))


def is_child_of(live: Manifest, uid: str) -> bool:
    """Whether a resource controls an object, or is to control it again: we applied it, and its owner was taken off.

    That is what `kubectl delete --cascade=orphan` does, and what somebody may do by hand. An object that we never
    applied is nobody's child.
    """
    return owner_uid(live) == uid if controller_of(live) else our_fields(live) is not None


def is_ours(live: Manifest, *path: str) -> bool:
    """Whether one field is in what we applied, and nobody has written another value since."""
    return _has(our_fields(live), path)


def find_writer(live: Manifest, *path: str) -> str:
    """The manager, other than us, that wrote a field last; empty when there is none."""
    written = [
        (str(entry.get("time", "")), str(entry["manager"]))
        for entry in live["metadata"].get("managedFields", [])
        if entry.get("manager") != FIELD_MANAGER and _has(entry.get("fieldsV1"), path)
    ]
    return max(written, default=("", ""))[1]


def _has(fields: Manifest | None, path: Iterable[str]) -> bool:
    for key in path:
        if fields is None or f"f:{key}" not in fields:
            return False
        fields = fields[f"f:{key}"]
    return True


def our_fields(live: Manifest) -> Manifest | None:
    """The fieldsV1 tree of what we applied, as far as nobody has taken it from us. None when we applied nothing."""
    for entry in live["metadata"].get("managedFields", []):
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return dict(entry["fieldsV1"])
    return None


def _owns(value: Any, fields: Manifest) -> bool:
    """Whether every field of `value` is in a fieldsV1 tree. An empty subtree means the value is owned as a whole."""
    keys = [key for key in fields if key != "."]
    if not keys:
        return True
    if isinstance(value, dict):
        return all(f"f:{key}" in fields and _owns(child, fields[f"f:{key}"]) for key, child in value.items())
    if isinstance(value, list):
        return all(_owns_item(item, fields, keys) for item in value)
    return True


def _owns_item(item: Any, fields: Manifest, keys: list[str]) -> bool:
    if not isinstance(item, dict):
        return f"v:{json.dumps(item)}" in fields
    for key in keys:
        if key.startswith("k:") and _is_key_of(json.loads(key[2:]), item):
            return _owns(item, fields[key])
    return False


def _is_key_of(key: Manifest, item: Manifest) -> bool:
    """Whether a list key is this item's. The server adds defaults to keys (a port's protocol), so those may lack."""
    return all(item.get(name, value) == value for name, value in key.items())
