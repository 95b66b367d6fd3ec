"""Mooncake's Python binding: which it is, and whether it has what the connector calls.

As a program (`python -m mooncake_store_connector.doctor.binding`) it imports the binding, which may end the process.
"""

import importlib.metadata
import json
import os
import platform
from collections.abc import Collection, Mapping
from typing import Any, Final

from mooncake_store_connector.doctor.bounded import Ran, open_replies
from mooncake_store_connector.doctor.report import Finding, Level

_CHECK: Final = "mooncake binding"
_INSTALL: Final = "install mooncake-transfer-engine 0.3.13 (without CUDA: mooncake-transfer-engine-non-cuda)"
# What each method of the client is for. Without those of the second table something is missing, and the rest works.
_NEEDED: Final = (
    "setup",
    "close",
    "get_hostname",
    "register_buffer",
    "batch_put_from",
    "batch_get_into",
    "batch_is_exist",
    "put",
    "get",
    "get_size",
    "remove",
)
_USEFUL: Final = {"upsert": "a reset of the cache cannot be told to other engines"}


def judge_binding(ran: Ran) -> Finding:
    """What to say of a run of this program."""
    if ran.status is None:
        return Finding(Level.FAIL, _CHECK, "its import did not end in time", _INSTALL)
    if ran.status < 0:
        found = f"its import ended the process by signal {-ran.status}"
        return Finding(Level.FAIL, _CHECK, found, f"it may be built for another machine than {platform.machine()}")
    try:
        told = json.loads(ran.said)
    except ValueError:
        return Finding(Level.FAIL, _CHECK, f"its import ended with status {ran.status}", _INSTALL)
    return _judge_report(told)


def _judge_report(told: Mapping[str, Any]) -> Finding:
    if "error" in told:
        return Finding(Level.FAIL, _CHECK, f"cannot be imported ({told['error']})", _INSTALL)
    features = set(told["features"])
    which = f"{told['distribution']} {told['version']}"
    missing = [name for name in (*_NEEDED, "preferred_segment") if name not in features]
    if missing:
        return Finding(Level.FAIL, _CHECK, f"{which} lacks {', '.join(missing)}", _INSTALL)
    lost = [f"it lacks {name}: {cost}" for name, cost in _USEFUL.items() if name not in features]
    if lost:
        return Finding(Level.WARNING, _CHECK, f"{which}; {'; '.join(lost)}", _INSTALL)
    tenants = "knows tenants" if "tenant_id" in features else "knows no tenants"
    return Finding(Level.OK, _CHECK, f"{which} has all {len(_NEEDED) + len(_USEFUL)} methods and {tenants}")


def find_features(client: type, placement: object) -> list[str]:
    """What a binding's client and its placement of puts have, of what we ask for."""
    found = [name for name in (*_NEEDED, *_USEFUL) if hasattr(client, name)]
    if hasattr(placement, "preferred_segment"):
        found.append("preferred_segment")
    # The binding's functions have no signature but in their text.
    if "tenant_id" in (getattr(client, "setup", None).__doc__ or ""):
        found.append("tenant_id")
    return found


def main() -> None:
    """Import the binding and tell, as JSON, what it has."""
    replies = open_replies()
    report: dict[str, object]
    try:
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig  # noqa: PLC0415 - may not be there

        name, version = _distribution(importlib.metadata.packages_distributions().get("mooncake", ()))
        features = find_features(MooncakeDistributedStore, ReplicateConfig())
        report = {"distribution": name, "version": version, "features": features}
    except ImportError as error:
        report = {"error": str(error)}
    print(json.dumps(report), file=replies, flush=True)
    # Ending in order may take seconds, or hang.
    os._exit(0)


def _distribution(names: Collection[str]) -> tuple[str, str]:
    for name in names:
        return name, importlib.metadata.version(name)
    return "a build of its own", "without a version"


if __name__ == "__main__":
    main()
