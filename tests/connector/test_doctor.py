"""The doctor on a real store: healthy, absent and hung; a proven round trip; namespaces described and compared."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from mooncake_store_connector.client import ClientConfig, read_config
from mooncake_store_connector.descriptor import Descriptor, descriptor_key, write_descriptor

from connector.environment import connector_path, program
from connector.processes import free_port, master
from connector.stand_in import StandIn, stand_in
from connector.store_programs import P2P, client
from connector.test_agent import config_file

FACTS = {"dtype": "bfloat16", "block_size": "16", "group0.isa": "['amx']"}


def doctor(*arguments: object, timeout: float = 60) -> tuple[int, str, str]:
    """Run it: the status, and what it said on both outputs."""
    ran = subprocess.run(
        ["nice", program("python"), "-m", "mooncake_store_connector", "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout + 60,
        check=False,
        env={**os.environ, "PYTHONPATH": connector_path(), "PYTHONHASHSEED": "0"},
    )
    return ran.returncode, ran.stdout, ran.stderr


def examined(config: Path, *arguments: object) -> tuple[int, dict[str, dict[str, str]]]:
    """The status, and each check's last finding."""
    status, out, err = doctor("--config", config, "--json", *arguments)
    assert out, err
    return status, {row["check"]: row for row in json.loads(out)["findings"]}


def test_a_healthy_store_is_proven_by_a_round_trip(tmp_path: Path) -> None:
    with master(tmp_path / "master.log") as (port, _), client(tmp_path / "other.log") as other:
        status, out, err = doctor("--config", config_file(tmp_path, port), "--extra", '{"cache_prefix": "a"}')
        assert status == 0, out + err
        lines = out.splitlines()
        assert "ok       round trip: 1024 KiB put in one process came whole in another, and were removed" in lines
        assert f"ok       master: 127.0.0.1:{port} let a client join" in lines
        assert any(line.startswith("ok       mooncake binding: mooncake-transfer-engine") for line in lines)
        assert any("protocol tcp; each rank lends 64 MiB" in line for line in lines)
        assert "FAIL" not in out
        # Neither its object nor its memory stays behind.
        assert other.join(P2P, port, segment=0) == 0
        assert other("put", "key", "value") == -200


def test_the_store_lends_memory_where_engines_do_not(tmp_path: Path) -> None:
    with master(tmp_path / "master.log") as (port, _), client(tmp_path / "owner.log") as owner:
        changes = {"mode": "standalone-store", "global_segment_size": 0}
        status, found = examined(config_file(tmp_path, port, **changes))
        assert status == 1
        assert "no segment has room" in found["round trip"]["remedy"]
        assert owner.join(P2P, port) == 0
        status, found = examined(config_file(tmp_path, port, **changes))
        assert (status, found["round trip"]["level"]) == (0, "ok")


def test_a_master_that_is_not_there_and_a_key_that_nobody_reads(tmp_path: Path) -> None:
    config = config_file(tmp_path, free_port(), globl_segment_size=1)
    status, found = examined(config, "--extra", '{"wait_msec": 1}')
    assert status == 1
    assert found["mooncake_config.json.globl_segment_size"]["level"] == "warning"
    assert "nearest known key is global_segment_size" in found["mooncake_config.json.globl_segment_size"]["remedy"]
    assert found["kv_connector_extra_config.wait_msec"]["remedy"] == "did you mean wait_ms?"
    assert found["master"]["level"] == "FAIL"
    assert "refused" in found["master"]["found"]
    assert "round trip" not in found


def test_a_master_that_hangs_does_not_hang_the_doctor(tmp_path: Path) -> None:
    """Without a bound this ends by the test's own limit."""
    with master(tmp_path / "master.log") as (port, process):
        config = config_file(tmp_path, port)
        process.send(signal.SIGSTOP)
        try:
            status, found = examined(config, "--timeout", "8")
            assert status == 1
            assert found["master"]["level"] == "FAIL"
            assert "did not let a client join" in found["master"]["found"]
            status, _, err = doctor("describe", "ns", "--config", config, "--timeout", "3")
            assert status == 2
            assert "did not answer in time" in err
        finally:
            process.send(signal.SIGCONT)


@pytest.mark.parametrize("damage", ["other", "short", "gone"])
def test_a_round_trip_that_is_none_is_found(tmp_path: Path, damage: str) -> None:
    """The process that gets is asked for an object that another has put, or nobody."""
    with master(tmp_path / "master.log") as (port, _), client(tmp_path / "other.log") as other:
        config = read_config(config_file(tmp_path, port))
        assert other.join(P2P, port) == 0
        if damage != "gone":
            size = (1 << 20) + 64 - (100 if damage == "short" else 0)
            assert other("put_hex", "key", bytes(size).hex()) == 0
        answer = got(config, "key")
        proven = answer["code"] == (1 << 20) + 64 and answer["fault"] is None and answer["is_equal"]
        assert not proven
        assert (answer["code"] == (1 << 20) + 64) is (damage == "other")


def got(config: ClientConfig, key: str) -> Mapping[str, object]:
    """What the process that gets answers."""
    ran = subprocess.run(
        [program("python"), "-m", "mooncake_store_connector.doctor.roundtrip", "get", json.dumps(asdict(config)), key],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": connector_path()},
    )
    answer: Mapping[str, object] = json.loads(ran.stdout)
    return answer


def test_agents_leave_descriptors_by_which_namespaces_are_compared(tmp_path: Path) -> None:
    one, other = Descriptor("a-1", "a", FACTS), Descriptor("a-2", "a", {**FACTS, "block_size": "128"})
    with master(tmp_path / "master.log") as (port, _), client(tmp_path / "c.log") as reader:
        config = config_file(tmp_path, port)
        with (
            stand_in(config, tmp_path / "a.log", namespace="a-1", descriptor=write_descriptor(one)) as first,
            stand_in(config, tmp_path / "b.log", namespace="a-2", descriptor=write_descriptor(other)) as second,
            stand_in(config, tmp_path / "d.log", namespace="a-3") as silent,
        ):
            assert reader.join(P2P, port) == 0
            wait_described(first, reader, "a-1")
            wait_described(second, reader, "a-2")
            status, out, err = doctor("describe", "a-1", "--config", config)
            assert status == 0, err
            assert json.loads(out)["facts"] == FACTS
            saved = tmp_path / "saved.json"
            saved.write_text(out)
            status, out, err = doctor("compare", saved, "a-2", "--config", config, "--json")
            assert status == 1, err
            assert [row["field"] for row in json.loads(out)["differences"]] == ["block_size"]
            assert doctor("compare", "--config", config, saved, "a-1")[0] == 0
            # None was given, none is written; and one that is lost is written again.
            silent.wait_usable()
            status, _, err = doctor("describe", "a-3", "--config", config)
            assert (status, "no descriptor" in err) == (2, True)
            assert reader("remove", descriptor_key("a-1"), True) == 0
            wait_described(first, reader, "a-1")


def wait_described(engine: StandIn, reader: object, namespace: str) -> None:
    """Wait for the engine's agent to have left its descriptor."""
    assert callable(reader)
    engine.wait("a descriptor", lambda: reader("get_size", descriptor_key(namespace)) > 0)
