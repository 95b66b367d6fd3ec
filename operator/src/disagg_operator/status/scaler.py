"""The status of scalers: what `/scale` tells autoscalers of a role."""

from collections.abc import Iterable
from typing import Any

from disagg_operator.api.names import SCALER_KIND, Component, selector_text
from disagg_operator.status.observation import Observation

Manifest = dict[str, Any]


def find_stale_scalers(live: Iterable[Manifest], seen: Observation) -> list[tuple[Manifest, Manifest]]:
    """Scalers whose status is not what is seen, each with the status that it should have."""
    stale = []
    for scaler in live:
        if scaler["kind"] == SCALER_KIND:
            status = build_scaler_status(scaler, seen)
            if scaler.get("status") != status:
                stale.append((scaler, status))
    return stale


def build_scaler_status(scaler: Manifest, seen: Observation) -> Manifest:
    """The status of one scaler."""
    role = Component(scaler["spec"]["role"])
    return {
        "observedGeneration": scaler["metadata"]["generation"],
        "replicas": seen.parts[role].replicas,
        "selector": selector_text(scaler["spec"]["resource"], role),
    }
