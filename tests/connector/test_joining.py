"""A store that comes late, hangs, dies and comes back, seen by the client that stands in for it in engines."""

import signal
from pathlib import Path

from connector.processes import free_port, master, wait_until
from connector.store_programs import P2P, Client, client, joining_client, setup_arguments

SIZE = 4096


def _join(one: Client, port: int) -> None:
    assert one("setup", *setup_arguments(port), seconds=10) == [0, 0]


def test_without_a_master_everything_is_a_miss_until_there_is_one(tmp_path: Path) -> None:
    port = free_port()
    with joining_client(tmp_path / "a.log", "ns") as one:
        _join(one, port)
        assert one("exist", "k", "l") == [0, 0]
        assert one("save", "k", "x") < 0
        assert one("load", "k") == [-900, "-"]
        assert one("usable") is False
        with master(tmp_path / "master.log", port=port) as (_, process):
            wait_until("the client to join", 60, lambda: one("usable"), process)
            assert one("save", "k", "x") == 0
            with client(tmp_path / "b.log") as other:
                assert other.join(P2P, port) == 0
                assert other("get", "k") == "x" * SIZE
                assert other("put", "l", "y" * SIZE) == 0
                assert one("exist", "k", "l", "m") == [1, 1, 0]
                assert one("load", "l") == [SIZE, "y"]


def test_a_master_that_hangs_costs_one_call(tmp_path: Path) -> None:
    with master(tmp_path / "master.log") as (port, process), joining_client(tmp_path / "a.log", "ns") as one:
        _join(one, port)
        wait_until("the client to join", 60, lambda: one("usable"), process)
        assert one("save", "k", "x") == 0
        process.send(signal.SIGSTOP)
        one("exist", "k", seconds=20)
        assert one("usable") is False
        assert one("exist", "k") == [0]
        assert one("load", "k")[0] < 0
        process.send(signal.SIGCONT)
        wait_until("the client to use the store again", 60, lambda: one("usable"), process)
        assert one("load", "k") == [SIZE, "x"]


def test_a_master_that_dies_and_returns_is_used_again(tmp_path: Path) -> None:
    with joining_client(tmp_path / "a.log", "ns") as one:
        with master(tmp_path / "master.log") as (port, process):
            _join(one, port)
            wait_until("the client to join", 60, lambda: one("usable"), process)
        one("exist", "k", seconds=20)
        assert one("usable") is False
        with master(tmp_path / "master.log", port=port) as (_, process):
            wait_until("the client to use the store again", 60, lambda: one("usable"), process)
            wait_until("a save to succeed", 60, lambda: one("save", "k", "z") == 0, process)
            assert one("load", "k") == [SIZE, "z"]


def test_only_whole_blocks_count_as_loaded(tmp_path: Path) -> None:
    """A block of another size under the same key is a failure, never bytes."""
    with master(tmp_path / "master.log") as (port, process), joining_client(tmp_path / "a.log", "ns") as one:
        _join(one, port)
        wait_until("the client to join", 60, lambda: one("usable"), process)
        with client(tmp_path / "b.log") as other:
            assert other.join(P2P, port) == 0
            assert other("put", "short", "s" * (SIZE // 2)) == 0
            assert one("load", "short")[0] < 0
            assert other("put", "long", "s" * (SIZE * 2)) == 0
            assert one("load", "long")[0] < 0
        assert one("load", "missing")[0] < 0


def test_a_reset_leaves_other_namespaces_alone(tmp_path: Path) -> None:
    with master(tmp_path / "master.log") as (port, process), joining_client(tmp_path / "a.log", "my.ns") as one:
        _join(one, port)
        wait_until("the client to join", 60, lambda: one("usable"), process)
        keys = ["my.ns@model@1", "my.ns@model@2", "myxns@model@1", "my.ns-2@model@1"]
        assert [one("save", key, "x") for key in keys] == [0] * 4
        assert one("remove_all") == 2
        assert one("exist", *keys) == [0, 0, 1, 1]
