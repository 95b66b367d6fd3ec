"""What others have added to workloads: sidecars, variables, annotations. It stays, and is shown.

A manager's entry in `managedFields` tells what it wrote. What is in none of our fields is an addition; fields that
controllers write in the course of their work are none.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from disagg_operator.api.names import FIELD_MANAGER, SEED_MANAGER, WORKLOADS
from disagg_operator.plan.ownership import our_fields
from disagg_operator.status.report import Event

Manifest = dict[str, Any]
_NOT_USERS: Final = frozenset({FIELD_MANAGER, SEED_MANAGER, "kube-controller-manager", "lws"})
_BOOKKEEPING: Final = ("metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]",)
_MAX_PATHS: Final = 4


def find_additions(live: Iterable[Manifest]) -> tuple[str, ...]:
    """One sentence for each workload and each manager that added something to it, in a fixed order."""
    return tuple(
        sentence
        for child in sorted(live, key=lambda each: (str(each["kind"]), str(each["metadata"]["name"])))
        if child["kind"] in WORKLOADS
        for sentence in _tell(child)
    )


def _tell(child: Manifest) -> Iterator[str]:
    ours = our_fields(child) or {}
    by_manager: dict[str, set[str]] = {}
    for entry in child["metadata"].get("managedFields", []):
        if entry.get("subresource") or entry.get("manager") in _NOT_USERS:
            continue
        paths = {path for path in _list_added(entry.get("fieldsV1", {}), ours, "") if path not in _BOOKKEEPING}
        if paths:
            by_manager.setdefault(str(entry["manager"]), set()).update(paths)
    for manager, paths in sorted(by_manager.items()):
        told, more = sorted(paths)[:_MAX_PATHS], len(paths) - _MAX_PATHS
        rest = f" and {more} more" if more > 0 else ""
        yield f"{child['kind']}/{child['metadata']['name']}: {', '.join(told)}{rest} by {manager} is kept"


def _list_added(theirs: Manifest, ours: Manifest, path: str) -> Iterator[str]:
    """Paths of a fieldsV1 tree at the first step where ours has nothing."""
    for key, inner in theirs.items():
        if key == ".":
            continue
        here = _join(path, key)
        if not isinstance(ours, dict) or key not in ours:
            # A map that only they have parts in is told by its parts, down to what has a name of its own.
            parts = [each for each in inner if each.startswith("f:")] if isinstance(inner, dict) else []
            if parts and key.startswith("f:"):
                yield from _list_added(inner, {}, here)
            else:
                yield here
        else:
            yield from _list_added(inner, ours[key], here)


def _join(path: str, key: str) -> str:
    kind, _, text = key.partition(":")
    if kind == "f":
        name = f"[{text}]" if "/" in text or "." in text else f".{text}"
        return f"{path}{name}".lstrip(".")
    if kind == "k":
        values = [str(value) for value in json.loads(text).values()]
        return f"{path}[{','.join(values)}]"
    return f"{path}[{json.loads(text)}]" if kind == "v" else path


def tell_additions(additions: Iterable[str], old: Manifest) -> Iterator[Event]:
    """One event for all additions that the `old` status does not show yet, if there are any."""
    known = set(old.get("hints", []))
    fresh = [sentence for sentence in additions if sentence not in known]
    if fresh:
        yield Event("Normal", "AddedElsewhere", "; ".join(fresh))
