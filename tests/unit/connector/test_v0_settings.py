"""What the V0 connector reads from `kv_connector_extra_config`, and how it refuses the rest."""

import pytest
from mooncake_store_connector.problems import ConfigError
from mooncake_store_connector.v0.settings import Settings, read_settings


def test_everything_is_off_by_default() -> None:
    assert read_settings({}) == read_settings(None) == Settings(cache_prefix="", pair_guard=False)


def test_what_is_given_is_read() -> None:
    assert read_settings({"cache_prefix": "a", "pair_guard": True}) == Settings("a", True)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"pair_gaurd": True},
            "kv_connector_extra_config.pair_gaurd: an unknown key; the nearest known key is pair_guard",
        ),
        ({"prefix": "a"}, "kv_connector_extra_config.prefix: an unknown key; the nearest known key is cache_prefix"),
        ({"pair_guard": "true"}, "kv_connector_extra_config.pair_guard: found 'true'; write true or false"),
        ({"pair_guard": 1}, "kv_connector_extra_config.pair_guard: found 1; write true or false"),
        ({"cache_prefix": None}, "kv_connector_extra_config.cache_prefix: found None; write a text"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(extra: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(extra)
    assert str(refused.value) == said


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings({"x": 1, "pair_guard": 2})
    assert len(refused.value.problems) == 2
