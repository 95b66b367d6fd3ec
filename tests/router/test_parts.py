"""The small parts: event framing, keys, discovery's answer, the pool's choice, flags."""

import argparse
import asyncio
from pathlib import Path

import pytest
from disagg_router.breaker import Breaker
from disagg_router.discovery import parse_members
from disagg_router.engines import Member, Pool, Role
from disagg_router.keys import Keyring, bearer, read_keys
from disagg_router.revisions import parse_revisions
from disagg_router.settings import parse_pods_url, parse_seconds, parse_settings, parse_size, parse_url
from disagg_router.sse import EventStream
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("payload", [None, [], {}, {"items": 3}])
def test_what_is_no_list_of_pods_is_refused(payload: object) -> None:
    with pytest.raises(ValueError, match="no list of pods"):
        parse_revisions(payload, "rev")


def test_revisions_are_read_by_address() -> None:
    pods = [
        {"metadata": {"labels": {"rev": "a"}}, "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}},
        {"metadata": {"labels": {}}, "status": {"podIPs": [{"ip": "10.0.0.2"}]}},
        {"metadata": {"labels": {"rev": "b"}}, "status": {}},
    ]
    assert parse_revisions({"items": pods}, "rev") == {"10.0.0.1": "a", "fd00::1": "a"}


@given(events=st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b)), cuts=st.lists(st.integers(1, 9)))
def test_events_pass_whole_and_nothing_is_lost(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(b"data: " + event + b"\n\n" for event in events) + b"data: unfini"
    framing, passed, at = EventStream(), b"", 0
    for step in [*cuts, len(stream)]:
        piece = framing.feed(stream[at : at + step])
        assert not piece or piece.endswith(b"\n\n")
        passed += piece
        at += step
    assert passed + framing.rest() == stream
    assert framing.rest() == b"data: unfini"


@given(cut=st.integers(0, 30))
def test_the_announced_end_is_seen_however_it_is_cut(cut: int) -> None:
    stream, framing = b'data: {"a":1}\n\ndata: [DONE]\n\n', EventStream()
    framing.feed(stream[:cut])
    framing.feed(stream[cut:])
    assert framing.done


def test_the_word_done_in_a_text_is_no_end() -> None:
    framing = EventStream()
    framing.feed(b'data: {"text":"data: [DONE]"}\n\n')
    assert not framing.done


def test_an_endless_event_is_not_held_for_ever() -> None:
    framing = EventStream(limit=10)
    assert framing.feed(b"0123456789") == b""
    assert framing.feed(b"x") == b"0123456789x"


def test_keys_come_from_a_file_or_from_all_files_of_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "..2026"
    secret.mkdir()
    (secret / "team-a").write_text("sk-a\n\n  sk-a2  \n")
    (secret / "team-b").write_text("sk-b")
    for name in ("team-a", "team-b"):
        (tmp_path / name).symlink_to(secret / name)
    assert read_keys(tmp_path) == {"sk-a", "sk-a2", "sk-b"}
    assert read_keys(secret / "team-a") == {"sk-a", "sk-a2"}


async def test_keys_fail_closed_and_a_broken_rotation_keeps_the_old_ones(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keyring = Keyring(file)
    await keyring.reload()
    assert not keyring.loaded
    assert not keyring.accepts("Bearer ")
    file.write_text("one\n")
    await keyring.reload()
    assert keyring.accepts("bearer one")
    assert not keyring.accepts("Bearer one2")
    file.write_bytes(b"\xff\xfe")
    await keyring.reload()
    assert keyring.accepts("Bearer one")
    file.write_text("\n")
    await keyring.reload()
    assert not keyring.accepts("Bearer one")
    assert not keyring.accepts("Bearer ")


@pytest.mark.parametrize(
    ("header", "key"), [("Bearer a", "a"), ("BEARER  a ", "a"), ("a", ""), ("Basic a", ""), ("", ""), ("Bearer", "")]
)
def test_the_key_of_a_header(header: str, key: str) -> None:
    assert bearer(header) == key


def test_discoverys_answer() -> None:
    workers = [
        {"url": "http://10.0.0.1:8000", "worker_type": "prefill", "is_healthy": True},
        {"url": "http://[fd00::1]:8000", "worker_type": "decode", "is_healthy": False},
        {"url": "http://10.0.0.2:8000", "worker_type": "regular", "is_healthy": True},
        {"url": "grpc://10.0.0.3:8000", "worker_type": "decode", "is_healthy": True},
    ]
    assert parse_members({"workers": workers}) == [
        Member("http://10.0.0.1:8000", Role.PREFILL),
        Member("http://[fd00::1]:8000", Role.DECODE),
    ]


@pytest.mark.parametrize("payload", [None, [], {}, {"workers": None}, {"workers": ["x"]}])
def test_an_answer_that_is_none_is_refused(payload: object) -> None:
    with pytest.raises(ValueError, match="discovery's answer"):
        parse_members(payload)


def pool_of(*members: Member, last_resort: str = "") -> Pool:
    pool = Pool(Breaker, last_resort=last_resort)
    pool.update(members)
    return pool


async def test_the_least_loaded_sound_engine_is_chosen() -> None:
    pool = pool_of(*(Member(f"http://10.0.0.{n}:1", Role.DECODE) for n in (1, 2, 3)))
    one, two, three = pool.listed(Role.DECODE)
    one.in_flight, two.in_flight, three.in_flight = 2, 1, 0
    three.breaker.lose(0)
    assert pool.choose_decode(set()) is two
    assert pool.choose_decode({two.url}) is one
    assert pool.choose_decode({one.url, two.url}) is three, "one in doubt is better than none"
    assert pool.choose_decode({one.url, two.url, three.url}) is None


async def test_prefill_in_doubt_is_not_chosen() -> None:
    pool = pool_of(Member("http://10.0.0.1:1", Role.PREFILL))
    pool.listed(Role.PREFILL)[0].breaker.lose(0)
    assert pool.choose_prefill(set()) is None


async def test_a_pair_is_of_one_revision_as_far_as_revisions_are_known() -> None:
    pool = pool_of(*(Member(f"http://10.0.0.{n}:1", role) for n in (1, 2, 3) for role in Role))
    for role in Role:
        for engine, revision in zip(pool.listed(role), ("old", "new", ""), strict=True):
            engine.revision = revision
    old, new, unknown = pool.listed(Role.DECODE)
    old.in_flight = new.in_flight = 1
    assert pool.choose_decode(set(), "old") is unknown, "it may share it, and has less to do"
    assert pool.choose_decode({unknown.url}, "old") is old
    old.breaker.lose(0)
    assert pool.choose_decode({unknown.url}, "old") is new, "a sound engine is better than KV"
    prefill = {pool.choose_prefill(set(), "new") for _ in range(40)}
    assert prefill == set(pool.listed(Role.PREFILL)[1:])
    assert pool.choose_prefill({engine.url for engine in prefill if engine}, "new") is None


async def test_decodes_service_comes_last() -> None:
    pool = pool_of(Member("http://10.0.0.1:1", Role.DECODE), last_resort="http://svc:1")
    first = pool.choose_decode(set())
    assert first is not None
    assert first.url == "http://10.0.0.1:1"
    last = pool.choose_decode({first.url})
    assert last is pool.last_resort
    assert pool.choose_decode({first.url, "http://svc:1"}) is None


async def test_an_engine_that_stays_listed_keeps_its_history() -> None:
    member = Member("http://10.0.0.1:1", Role.PREFILL)
    pool = pool_of(member)
    engine = pool.listed(Role.PREFILL)[0]
    assert pool.update([member]) == ([], [])
    assert pool.listed(Role.PREFILL) == [engine]
    engine.in_flight = 1
    assert pool.update([]) == ([], [engine])
    assert pool.watched() == [engine], "its requests are watched to their end"
    engine.in_flight = 0
    assert pool.watched() == []
    assert isinstance(pool.changed, asyncio.Event)


def test_flags_have_defaults_and_name_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    settings = parse_settings(["--discovery-url", "http://127.0.0.1:8101/", "--model-name", "m", "--model-name", "n"])
    assert settings.discovery_url == "http://127.0.0.1:8101"
    assert settings.model_names == ("m", "n")
    assert settings.max_body_size == 32 << 20
    with pytest.raises(SystemExit):
        parse_settings(["--discovery-url", "127.0.0.1"])
    assert "write http://host:port" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("1Ki", 1024), ("64Mi", 64 << 20), ("1G", 10**9)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1MB", "1.5Gi", "x", " 1"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "x", "1s"])
def test_bad_times(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["http://x/api/v1/namespaces/a/pods", "https://x/api/v1/pods", "https://x", ""])
def test_bad_urls_of_pods(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="lists no pods"):
        parse_pods_url(text)


@pytest.mark.parametrize("text", ["https://x", "x:1", "http://a/b", "http://user@host", ""])
def test_bad_urls(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no base URL"):
        parse_url(text)
