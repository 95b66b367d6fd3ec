"""What the doctor says of what it finds, and who would share KV with whom. The store itself: tests/connector."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.__main__ import main
from mooncake_store_connector.client import ClientConfig
from mooncake_store_connector.descriptor import LARGEST, Descriptor, describe, read_descriptor, write_descriptor
from mooncake_store_connector.doctor.binding import find_features, judge_binding
from mooncake_store_connector.doctor.bounded import Deadline, Ran, run_in_thread, run_program
from mooncake_store_connector.doctor.checks import check_addresses, check_extra, check_keys, check_memory, check_seed
from mooncake_store_connector.doctor.compare import find_differences, format_comparison, meaning_of
from mooncake_store_connector.doctor.examine import resolve
from mooncake_store_connector.doctor.report import Finding, Level, exit_status, format_json, format_line, hide_secrets
from mooncake_store_connector.doctor.roundtrip import PAYLOAD, judge_round_trip
from mooncake_store_connector.frames import TRAILER
from mooncake_store_connector.namespace import _FACTS, derive_namespace
from mooncake_store_connector.problems import ConfigError

CONFIG = {"master_server_address": "mc.ops.svc:50051", "global_segment_size": "1Gi"}
FACTS = {"dtype": "bfloat16", "block_size": "16", "group0.isa": "['amx']", "tp": "1"}
WHOLE = PAYLOAD + TRAILER
GOT = {"code": WHOLE, "fault": None, "is_equal": True}
REMOVED = {"code": 0, "is_gone": True}


def _descriptor(prefix: str = "kv1", **changes: str) -> Descriptor:
    facts = {**FACTS, **changes}
    return Descriptor(derive_namespace(prefix, facts), prefix, facts)


def _levels(findings: list[Finding]) -> dict[str, Level]:
    return {one.check: one.level for one in findings}


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mooncake_store_connector", "doctor", *arguments])
    return main()


# -- configuration ----------------------------------------------------------------------------------------------------


def test_a_config_that_can_be_used() -> None:
    findings, values = check_keys({**CONFIG, "local_hostname": "10.0.0.5"}, "c.json")
    assert [one.level for one in findings] == [Level.OK]
    assert values is not None
    assert values["local_hostname"] == "10.0.0.5"
    assert "protocol tcp; each rank lends 1.0 GiB; the transfer buffer has 1.0 GiB" in check_memory(values).found


@pytest.mark.parametrize("broken", [{}, {"protocol": "tcpp"}])
def test_an_unknown_key_is_told_with_the_nearest_one(broken: dict[str, object]) -> None:
    """Beside a fault as well."""
    findings, values = check_keys({**CONFIG, "globl_segment_size": 1, **broken}, "c.json")
    told = {one.check: one for one in findings}
    assert told["c.json.globl_segment_size"].level is Level.WARNING
    assert told["c.json.globl_segment_size"].remedy == "the nearest known key is global_segment_size"
    assert (values is None) is bool(broken)
    assert exit_status(findings) == bool(broken)


def test_each_fault_is_a_line_with_a_remedy() -> None:
    findings, values = check_keys({"protocol": "x", "mode": "y", "master_token": "hunter2"}, "c.json")
    assert values is None
    failed = [one for one in findings if one.level is Level.FAIL]
    assert {one.check for one in failed} == {f"c.json.{key}" for key in ("protocol", "mode", "master_token")} | {
        "c.json.master_server_address"
    }
    assert all(one.remedy for one in failed)
    assert "hunter2" not in "".join(map(format_line, findings))


def test_an_own_address_that_is_none() -> None:
    findings, values = check_keys({**CONFIG, "local_hostname": 5}, "c.json")
    assert values is None
    assert _levels(findings)["c.json.local_hostname"] is Level.FAIL


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, Level.OK),
        ({"master_server_address": "localhost:1"}, Level.WARNING),
        ({"local_hostname": "127.0.0.1"}, Level.WARNING),
        ({"metadata_server": "http://[::1]:8080/metadata"}, Level.WARNING),
    ],
)
def test_addresses_that_others_cannot_reach(changes: dict[str, object], level: Level) -> None:
    _, values = check_keys({**CONFIG, "local_hostname": "fd00::2", **changes}, "c.json")
    assert values is not None
    assert [one.level for one in check_addresses(ClientConfig.of(values))] == [level]


def test_the_extra_config_is_judged_as_the_engine_does() -> None:
    assert _levels(check_extra({"wait_msec": 3})) == {"kv_connector_extra_config.wait_msec": Level.FAIL}
    assert [one.level for one in check_extra({"cache_prefix": "a", "_of_vllm": 1})] == [Level.OK]
    assert [one.level for one in check_extra({"load_async": True})] == [Level.WARNING, Level.WARNING, Level.OK]


@pytest.mark.parametrize(("seed", "level"), [("0", Level.OK), (None, Level.WARNING), ("random", Level.FAIL)])
def test_the_seed_of_hashes(seed: str | None, level: Level) -> None:
    assert check_seed(seed).level is level


# -- what others answered ---------------------------------------------------------------------------------------------


class _OldClient:
    def put(self) -> None: ...


@pytest.mark.parametrize(
    ("ran", "told"),
    [
        (Ran(None, ""), "did not end in time"),
        (Ran(-4, ""), "by signal 4"),
        (Ran(1, ""), "ended with status 1"),
        (Ran(0, '{"error": "No module named mooncake"}'), "cannot be imported"),
        (
            Ran(0, json.dumps({"distribution": "m", "version": "0.3", "features": find_features(_OldClient, None)})),
            "m 0.3 lacks setup, close, get_hostname",
        ),
    ],
)
def test_a_binding_that_is_no_use(ran: Ran, told: str) -> None:
    finding = judge_binding(ran)
    assert finding.level is Level.FAIL
    assert told in finding.found
    assert finding.remedy


@pytest.mark.parametrize(
    ("put", "got", "removed", "level", "told"),
    [
        ({"code": 0}, GOT, REMOVED, Level.OK, "1024 KiB"),
        ({"code": 0}, GOT, {}, Level.WARNING, "could not be removed"),
        ({"code": 0}, GOT, {"code": 0, "is_gone": False}, Level.WARNING, "could not be removed"),
        ({}, {}, {}, Level.FAIL, "put did not end in time"),
        ({"why": "no master"}, {}, {}, Level.FAIL, "no master"),
        ({"code": -200}, {}, {}, Level.FAIL, "put failed with code -200; no segment has room"),
        ({"code": 0}, {"code": -800}, REMOVED, Level.FAIL, "get failed with code -800; engines must reach"),
        ({"code": 0}, {}, REMOVED, Level.FAIL, "get did not end in time"),
        ({"code": 0}, {**GOT, "code": 5}, REMOVED, Level.FAIL, f"5 of {WHOLE} bytes came"),
        ({"code": 0}, {**GOT, "fault": "checksum"}, REMOVED, Level.FAIL, "(checksum)"),
        ({"code": 0}, {**GOT, "is_equal": False}, REMOVED, Level.FAIL, "(payload)"),
    ],
)
def test_a_round_trip_is_what_both_processes_say(
    put: dict[str, object], got: dict[str, object], removed: dict[str, object], level: Level, told: str
) -> None:
    finding = judge_round_trip(put, got, removed)
    assert finding.level is level
    assert told in format_line(finding)


def test_work_that_hangs_is_given_up() -> None:
    never = "import threading; threading.Event().wait()"
    assert run_program([sys.executable, "-c", never], 0.2).status is None
    assert run_program([sys.executable, "-c", "print('said'); raise SystemExit(3)"], 60) == Ran(3, "said")
    assert run_in_thread(lambda: "done", 60, "late") == "done"
    assert Deadline(0).left() == 0
    assert Deadline(60).left(5) == 5


def test_a_name_that_does_not_resolve() -> None:
    finding = resolve("no-such-host.invalid:1", Deadline(30))
    assert finding.level is Level.FAIL
    assert "no-such-host.invalid:1" in finding.found
    assert resolve("127.0.0.1:1", Deadline(30)) == Finding(Level.OK, "master's name", "127.0.0.1 is 127.0.0.1")


# -- reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("redis://me:pw@host:6379/0", "redis://***@host:6379/0"),
        ("redis://:pw@host", "redis://***@host"),
        ("redis://me:p/w@1@host:6379", "redis://***@host:6379"),
        ("found 'me:p/w@mc:50051'", "found '***@mc:50051'"),
        ("http://h:1/m?token=abc&x=1", "http://h:1/m?token=***&x=1"),
        ("[fd00::2]:50051 and mc:50051", "[fd00::2]:50051 and mc:50051"),
    ],
)
def test_no_secret_is_told(text: str, hidden: str) -> None:
    assert hide_secrets(text) == hidden
    finding = Finding(Level.OK, "a", text)
    assert format_line(finding) == f"ok       a: {hidden}"
    assert json.loads(format_json([finding]))["findings"][0]["found"] == hidden


def test_warnings_do_not_count() -> None:
    warning, failure = Finding(Level.WARNING, "a", "b"), Finding(Level.FAIL, "a", "b")
    assert exit_status([warning]) == 0
    assert exit_status([warning, failure]) == 1
    assert json.loads(format_json([warning]))["ok"] is True
    assert json.loads(format_json([failure]))["ok"] is False


def test_what_is_bad_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    assert _run(monkeypatch, "--extra", "[") == 2
    assert _run(monkeypatch, "--extra", "{") == 2
    assert _run(monkeypatch, "compare", str(tmp_path / "none.json"), "b") == 2
    assert _run(monkeypatch, "describe", "ns") == 2
    for timeout in ("0", "-1", "soon"):
        with pytest.raises(SystemExit) as ended:
            _run(monkeypatch, "--timeout", timeout)
        assert ended.value.code == 2


def test_a_doctor_without_config_or_mooncake_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    assert _run(monkeypatch) == 1
    assert "FAIL     MOONCAKE_CONFIG_PATH: not set; set it to the path" in capsys.readouterr().out
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(tmp_path / "none"))
    assert _run(monkeypatch, "--json") == 1
    told = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert told["config"]["level"] == "FAIL"
    assert told["mooncake binding"]["level"] == "FAIL"


# -- descriptors ------------------------------------------------------------------------------------------------------


def test_a_descriptor_is_read_as_it_was_written() -> None:
    one = _descriptor()
    assert read_descriptor(write_descriptor(one), "a") == one
    assert read_descriptor(json.dumps(describe(one), indent=2), "a") == one


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50).map(lambda text: text * 100), max_size=60))
def test_a_descriptor_is_bounded_and_what_is_cut_still_differs(facts: dict[str, str]) -> None:
    text = write_descriptor(Descriptor("ns", "", facts))
    assert len(text.encode()) <= LARGEST
    assert set(read_descriptor(text, "a").facts) == set(facts)
    longer = {name: fact + "x" for name, fact in facts.items()}
    other = read_descriptor(write_descriptor(Descriptor("other", "", longer)), "a")
    assert {one.field for one in find_differences(read_descriptor(text, "a"), other)} >= set(facts)


def test_what_cannot_be_shortened_is_left_out() -> None:
    assert write_descriptor(Descriptor("n" * LARGEST, "", {})) == ""


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"v": 2}', '{"v": 1, "namespace": "a", "cache_prefix": "", "facts": 3}']
)
def test_what_is_no_descriptor_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.json"):
        read_descriptor(text, "file.json")


def test_engines_that_differ_are_told_why() -> None:
    one, other = _descriptor(), _descriptor("kv2", block_size="128", **{"group0.isa": "['vec']"})
    differences = find_differences(one, other)
    assert [(row.field, row.first, row.second) for row in differences] == [
        ("block_size", "16", "128"),
        ("cache_prefix", "kv1", "kv2"),
        ("group0.isa", "['amx']", "['vec']"),
    ]
    told = format_comparison(one, other, differences)
    assert "--block-size" in told
    assert "instruction set" in told
    assert find_differences(one, _descriptor()) == []


def test_a_fact_that_one_side_lacks() -> None:
    (row,) = find_differences(_descriptor(), _descriptor(speculative="ngram"))
    assert (row.first, row.second) == ("(not there)", "ngram")


def test_other_namespaces_of_equal_facts_do_not_share() -> None:
    one = _descriptor()
    (row,) = find_differences(one, Descriptor("other", one.prefix, one.facts))
    assert row.field == "namespace"


def test_every_fact_has_a_meaning() -> None:
    facts = {*_FACTS, "tp", "layout", "vllm", "kv_layout", "weights", "hash_seed", "group0.isa", "group3.bytes"}
    assert [fact for fact in sorted(facts) if "one of the facts" in meaning_of(fact)] == []
    assert "one of the facts" in meaning_of("group0.unheard")


def test_two_files_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text(write_descriptor(_descriptor()))
    other.write_text(write_descriptor(_descriptor(tp="2")))
    assert _run(monkeypatch, "compare", str(one), str(one)) == 0
    assert "They share KV" in capsys.readouterr().out
    assert _run(monkeypatch, "compare", str(one), str(other), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["share"] is False
    assert [(row["field"], row["first"], row["second"]) for row in told["differences"]] == [("tp", "1", "2")]
    assert _run(monkeypatch, "--json", "compare", str(one), str(one)) == 0
    assert json.loads(capsys.readouterr().out)["share"] is True
