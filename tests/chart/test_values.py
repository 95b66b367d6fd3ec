"""Bad values are refused with the path and what would be right; good ones are not."""

from typing import Any

import pytest
from chart.helm import Helm, HelmError, case_values

BAD = [
    ({"replicaCount": 2}, "replicaCount"),
    ({"image": {"repository": "example.com/operator"}}, "repository"),
    ({"replicas": "2"}, "/replicas': got string, want integer"),
    ({"replicas": -1}, "/replicas': minimum"),
    ({"replicas": 99}, "/replicas': maximum"),
    ({"watchNamespaces": "team-a"}, "/watchNamespaces': got string, want array"),
    ({"watchNamespaces": ["Team A"]}, "/watchNamespaces/0': 'Team A' does not match pattern"),
    ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces': items at 0 and 1 are equal"),
    ({"image": {"digest": "latest"}}, "/image/digest': 'latest' does not match pattern"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy': value must be one of"),
    ({"crds": {"install": "yes"}}, "/crds/install': got string, want boolean"),
    ({"crds": {"instal": True}}, "instal"),
    ({"log": {"level": "verbose"}}, "/log/level': value must be one of"),
    ({"imagePullSecrets": ["login"]}, "/imagePullSecrets/0': got string, want object"),
    ({"images": {"engine": "cuda"}}, "/images/engine': got string, want object"),
    ({"images": {"engine": {"rocm": "x"}}}, "rocm"),
    ({"metrics": {"serviceMonitor": {"interval": "soon"}}}, "/metrics/serviceMonitor/interval': 'soon' does not match"),
    ({"registry": "registry.example.com/team/"}, "/registry': 'registry.example.com/team/' does not match pattern"),
    ({"nodeSelector": {"zone": 1}}, "/nodeSelector/zone': got number, want string"),
    ({"fullnameOverride": "Inference"}, "/fullnameOverride': 'Inference' does not match pattern"),
    ({"podSecurityContext": []}, "/podSecurityContext': got array, want object"),
]


@pytest.mark.parametrize(("values", "told"), BAD, ids=[told for _, told in BAD])
def test_a_bad_value_is_refused_by_name(helm: Helm, values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError) as refused:
        helm.template(values=case_values("defaults") | values)
    assert told in str(refused.value)


def test_an_install_without_images_says_what_to_set(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"no operator image: set registry .* or image\.ref"):
        helm.template()


@pytest.mark.parametrize("part", ["store", "router"])
def test_a_missing_part_is_named(helm: Helm, part: str) -> None:
    images = {"store": "example.com/store:1", "router": "example.com/router:1"} | {part: ""}
    with pytest.raises(HelmError, match=rf"no {part} image: set registry or images\.{part}"):
        helm.template(values={"image": {"ref": "example.com/operator:1"}, "images": images})


def test_a_parent_chart_may_take_it_in(helm: Helm) -> None:
    helm.template(values=case_values("defaults") | {"global": {"anything": 1}, "enabled": True})
