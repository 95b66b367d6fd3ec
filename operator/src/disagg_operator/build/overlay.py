"""Merges what users write raw (pod templates, kv-transfer-config) over what is generated.

Maps merge key by key. In pod templates, lists whose entries have a name merge by it, as in a strategic merge patch;
other lists are replaced. A null takes a generated key away, `$patch: delete` in a list's entry takes that entry away.
Keys that the operator does not know pass through: the API server judges them.
"""

import copy
from typing import Any, Final

from disagg_operator.build.inputs import Manifest

# What tells two entries of a list apart.
MERGE_KEYS: Final = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_KEY_DEFAULTS: Final = {"protocol": "TCP"}
# An entry of these is one thing: half of the old one and half of the new one would be neither.
_WHOLE_ENTRIES: Final = frozenset({"volumes", "env"})
# Of a probe's or a hook's ways to act there may be one.
_HANDLERS: Final = frozenset({"exec", "httpGet", "tcpSocket", "grpc", "sleep"})
DELETE: Final = "$patch"


def merge_template(base: Manifest, overlay: Manifest) -> Manifest:
    """The generated pod template with the user's partial one over it. Neither argument is changed."""
    return _merge_maps(base, overlay)


def merge_json(base: Manifest, overlay: Manifest) -> Manifest:
    """A JSON object with another merged over it (RFC 7386): lists are values, a null takes a key away."""
    merged = copy.deepcopy(base)
    for key, value in overlay.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge_json(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_maps(base: Manifest, overlay: Manifest) -> Manifest:
    merged = copy.deepcopy(base)
    if _HANDLERS & overlay.keys():
        for handler in _HANDLERS - overlay.keys():
            merged.pop(handler, None)
    for key, value in overlay.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_values(key, merged.get(key), value)
    return merged


def _merge_values(key: str, base: Any, overlay: Any) -> Any:
    if isinstance(overlay, dict):
        return _merge_maps(base if isinstance(base, dict) else {}, overlay)
    if isinstance(overlay, list) and key in MERGE_KEYS:
        return _merge_lists(key, base if isinstance(base, list) else [], overlay)
    return copy.deepcopy(overlay)


def _merge_lists(key: str, base: list[Any], overlay: list[Any]) -> list[Any]:
    merged = {_identity(key, entry): entry for entry in base}
    for entry in overlay:
        identity = _identity(key, entry)
        if isinstance(entry, dict) and entry.get(DELETE) == "delete":
            merged.pop(identity, None)
        elif isinstance(entry, dict) and key not in _WHOLE_ENTRIES:
            merged[identity] = _merge_maps(merged.get(identity, {}), entry)
        else:
            merged[identity] = _without_nulls(entry)
    return list(merged.values())


def _identity(key: str, entry: Any) -> tuple[Any, ...]:
    if not isinstance(entry, dict):
        return (repr(entry),)
    return tuple(entry.get(name, _KEY_DEFAULTS.get(name)) for name in MERGE_KEYS[key])


def _without_nulls(value: Any) -> Any:
    return _merge_maps({}, value) if isinstance(value, dict) else copy.deepcopy(value)
