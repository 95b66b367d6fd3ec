"""What to write: from the desired children and those that are there to applies, deletions, and reasons to wait."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from disagg_operator.plan.ownership import controller_of, is_as_applied, is_child_of, with_digest

Manifest = dict[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True)
class Changes:
    """The plan. With conflicts or leaving children nothing is applied: a resource is never half built."""

    applies: tuple[Manifest, ...] = ()
    deletions: tuple[Manifest, ...] = ()
    conflicts: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    live: dict[Key, Manifest] = field(default_factory=dict)


def object_key(manifest: Manifest) -> Key:
    """Kind and name: what identifies a child within its namespace."""
    return manifest["kind"], manifest["metadata"]["name"]


def plan_changes(desired: Iterable[Manifest], there: Iterable[Manifest], uid: str, kind: str) -> Changes:
    """Compare. `there` has every object that carries our labels or one of the desired names.

    An object of a desired name that this resource (`uid`, `kind`) does not control is a conflict, unless a deleted
    resource of the same kind controls it: then it is about to go, and is waited for.
    """
    wanted = {object_key(manifest): with_digest(manifest) for manifest in desired}
    live = {object_key(manifest): manifest for manifest in there}
    ours = {key: manifest for key, manifest in live.items() if is_child_of(manifest, uid)}
    leaving: list[str] = []
    conflicts: list[str] = []
    for key in wanted:
        other = live.get(key)
        if other is None:
            continue
        if key not in ours:
            (leaving if controller_of(other).get("kind") == kind else conflicts).append("/".join(key))
        elif "deletionTimestamp" in other["metadata"]:
            leaving.append("/".join(key))
    if leaving or conflicts:
        return Changes(conflicts=tuple(conflicts), leaving=tuple(leaving), live=ours)
    return Changes(
        applies=tuple(m for key, m in wanted.items() if key not in ours or not is_as_applied(m, ours[key])),
        deletions=tuple(m for key, m in ours.items() if key not in wanted and "deletionTimestamp" not in m["metadata"]),
        live=ours,
    )
