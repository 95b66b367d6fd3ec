"""Durations, as Kubernetes writes them and as Mooncake's flags have them. Field case C17."""

import pytest
from mooncake_store_connector.durations import parse_duration_ms
from mooncake_store_connector.problems import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [(5000, 5000), ("10000", 10000), ("60s", 60000), ("5000ms", 5000), ("1h", 3600000), ("1m30s", 90000), (0, 0)],
)
def test_durations(written: object, meant: int) -> None:
    assert parse_duration_ms(written, "p") == meant


@pytest.mark.parametrize("written", ["abc", "", "-1s", -1, True, None, 1.5, "1.5s", "1 s", "s", "1d", "5000\u0663"])
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration_ms(written, "defaultKvLeaseTtl")
    assert caught.value.problems[0].path == "defaultKvLeaseTtl"
