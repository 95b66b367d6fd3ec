"""A field that does not exist is told, never dropped in silence."""

import json

import pytest
from api.manifests import Json, resource
from demo.kubectl import Kubectl, KubectlError

# Field case C20: what people bring from other operators.
FOREIGN: Json = {
    "workers": {"segmentSize": "4Gi", "rdmaEnabled": True},
    "ha": {"type": "k8s"},
    "eviction": {"ratio": 0.05, "highWatermarkRatio": 0.95},
}


@pytest.mark.parametrize("style", [["apply"], ["apply", "--server-side"], ["create"]])
def test_kubectl_tells_every_unknown_field(style: list[str], kubectl: Kubectl, namespace: str) -> None:
    foreign = resource(**FOREIGN, pd={"role": "prefill"})
    with pytest.raises(KubectlError) as refused:
        kubectl.run(*style, "--validate=strict", "-n", namespace, "-f", "-", stdin=json.dumps(foreign))
    told = str(refused.value)
    if "--server-side" in style:
        # Server-side apply stops at the first one.
        assert 'unknown field "spec.' in told or "field not declared in schema" in told
    else:
        assert all(f'unknown field "spec.{field}"' in told for field in (*FOREIGN, "pd"))


def test_kubectl_is_strict_by_default(kubectl: Kubectl, namespace: str) -> None:
    with pytest.raises(KubectlError, match=r'unknown field "spec\.kvStore\.segmentsize"'):
        kubectl.run("apply", "-n", namespace, "-f", "-", stdin=json.dumps(resource(kvStore={"segmentsize": "4Gi"})))


@pytest.mark.parametrize("field", ["hfToken", "token"])
def test_a_secret_cannot_be_written_inline(field: str, kubectl: Kubectl, namespace: str) -> None:
    """Field case C92."""
    token = "hf_" + "a1B2" * 9
    inline = resource(model={"uri": "hf://a/b", field: token})
    with pytest.raises(KubectlError) as refused:
        kubectl.run("apply", "-n", namespace, "-f", "-", stdin=json.dumps(inline))
    assert f'unknown field "spec.model.{field}"' in str(refused.value)
    assert token not in str(refused.value)
