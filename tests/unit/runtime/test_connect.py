"""How the API server is reached: through the proxy that the environment names, if any."""

import pytest
from disagg_operator.kube.connect import find_proxy

PROXY = "http://proxy.example:3128"
NAMES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "https://10.0.0.1:443", None),
        ({"HTTPS_PROXY": PROXY}, "https://10.0.0.1:443", PROXY),
        ({"https_proxy": PROXY}, "https://api.example", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://10.0.0.1:443", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.1"}, "https://10.0.0.1:443", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": ".example"}, "https://api.example:6443", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": ".example"}, "https://api.other:6443", PROXY),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, expected: str | None
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(url) == expected
