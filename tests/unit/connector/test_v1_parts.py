"""The pure parts of the V1 connector: settings, the ring of slots, and how long a request waits."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.problems import ConfigError
from mooncake_store_connector.v1.budget import Pace, Wait
from mooncake_store_connector.v1.families import FAMILIES, family_of
from mooncake_store_connector.v1.ring import Ring
from mooncake_store_connector.v1.settings import read_settings
from mooncake_store_connector.v1.spinning import rest_instead_of_spinning
from mooncake_store_connector.weights import fingerprint_weights


def test_settings_have_defaults_and_take_durations() -> None:
    assert read_settings({}).wait_ms == 1000
    assert read_settings({"wait_ms": "250ms", "save_wait_ms": 0}).wait_ms == 250


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"wait_msec": 3}, "kv_connector_extra_config.wait_msec: an unknown key; did you mean wait_ms?"),
        ({"nothing": 3}, "kv_connector_extra_config.nothing: an unknown key; known keys are cache_prefix, wait_ms"),
        ({"wait_ms": "soon"}, "kv_connector_extra_config.wait_ms: found 'soon'"),
        ({"save_decode_cache": "yes"}, "kv_connector_extra_config.save_decode_cache: found 'yes'; write true or false"),
        ({"cache_prefix": 3}, "kv_connector_extra_config.cache_prefix: found 3; write a text"),
        ({"store_tp_size": 2}, "engines of different tensor parallelism do not share KV"),
    ],
)
def test_what_is_wrong_is_told_with_the_remedy(extra: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_settings(extra)
    assert told in str(error.value)


def test_options_of_other_connectors_are_named_and_change_nothing() -> None:
    settings = read_settings({"lookup_async": True})
    assert settings.notes == ("kv_connector_extra_config.lookup_async has no effect: lookups never block here",)


@given(st.integers(1, 20), st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=60))
def test_a_ring_never_gives_a_slot_twice(count: int, steps: list[tuple[bool, int]]) -> None:
    ring = Ring(count)
    held: list[int] = []
    for is_take, wanted in steps:
        if is_take:
            first, taken = ring.take(wanted)
            slots = list(range(first, first + taken))
            assert all(0 <= slot < count for slot in slots)
            assert not set(slots) & set(held)
            held += slots
        else:
            freed = min(wanted, len(held))
            ring.release(freed)
            held = held[freed:]
        assert ring.free == count - len(held)


def test_a_request_waits_no_longer_than_half_its_computation() -> None:
    pace = Pace()
    assert pace.budget(1000, 1.0) == 1.0, "nothing is known yet"
    pace.step(1000, now=10.0)
    pace.step(0, now=11.0)
    assert pace.budget(1000, 1.0) == 0.5
    assert pace.budget(10_000, 1.0) == 1.0
    pace.step(0, now=900.0)
    assert pace.budget(1000, 1.0) == 0.5, "an idle time is no step"


def test_only_time_that_kv_takes_is_a_wait() -> None:
    wait = Wait(1.0, now=10.0, step=4)
    assert not wait.is_over(10.5, step=4), "asked again in the same step"
    assert not wait.is_over(30.0, step=9), "the engine was full meanwhile"
    assert not wait.is_over(30.4, step=10)
    assert wait.is_over(30.5, step=11)
    assert wait.is_over(50.0, step=20), "it is not renewed"


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    content = bytearray((2).to_bytes(8, "little") + b"{}" + bytes(1 << 20))
    file.write_bytes(content)
    first = fingerprint_weights(tmp_path)
    assert first == fingerprint_weights(tmp_path)
    assert first
    content[10:200] = b"x" * 190
    file.write_bytes(content)
    assert fingerprint_weights(tmp_path) != first
    assert fingerprint_weights(tmp_path / "none") == ""


def test_every_count_of_the_code_has_a_metric() -> None:
    source = Path(__file__).parents[3] / "connector" / "src" / "mooncake_store_connector"
    code = "".join(file.read_text() for part in ("agent", "v1") for file in (source / part).glob("*.py"))
    counted = set(re.findall(r'(?:counters\.add|_count)\(f?"([a-z_]+)', code))
    assert len(counted) > 15
    assert [name for name in sorted(counted) if family_of(name) is None] == []
    assert family_of("misses_integrity_checksum") == ("misses", ["integrity_checksum"])
    assert {metric for metric, _ in FAMILIES.values()} >= {"drops", "misses", "loaded_tokens"}


def test_workers_on_cpus_rest_where_they_would_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ModuleType("shm_broadcast")
    assert not rest_instead_of_spinning(queue)
    queue.sched_yield = lambda: None  # type: ignore[attr-defined]
    assert rest_instead_of_spinning(queue)
    rests: list[float] = []
    monkeypatch.setattr("time.sleep", rests.append)
    queue.sched_yield()
    assert len(rests) == 1
    assert rests[0] > 0


def test_what_was_counted_is_taken_once() -> None:
    counters = Counters()
    counters.add("a", 2)
    counters.add("b", 0.5)
    assert counters.take() == {"a": 2, "b": 0.5}
    counters.add("b")
    assert counters.take() == {"b": 1}
    assert counters.take() == {}
    assert counters.snapshot() == {"a": 2, "b": 1.5}
