"""What scalers tell of their roles."""

from typing import Any

from disagg_operator.api.names import SCALER_KIND, Component
from disagg_operator.status.observation import Observation, Part
from disagg_operator.status.scaler import find_stale_scalers

SEEN = Observation({Component.DECODE: Part(Component.DECODE, 4, True, replicas=3)})


def scaler(**more: Any) -> dict[str, Any]:
    spec = {"replicas": 4, "role": "decode", "resource": "llama"}
    return {"kind": SCALER_KIND, "metadata": {"name": "llama-decode", "generation": 2}, "spec": spec, **more}


def test_a_scaler_tells_what_is_there_under_a_selector_without_revision() -> None:
    ((_, status),) = find_stale_scalers([scaler(), {"kind": "Deployment"}], SEEN)
    selector = "inference.disagg.io/name=llama,inference.disagg.io/role=decode"
    assert status == {"observedGeneration": 2, "replicas": 3, "selector": selector}


def test_what_is_told_is_not_told_again() -> None:
    ((_, status),) = find_stale_scalers([scaler()], SEEN)
    assert find_stale_scalers([scaler(status=status)], SEEN) == []
    assert find_stale_scalers([scaler(status={**status, "replicas": 2})], SEEN) != []
