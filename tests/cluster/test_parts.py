"""The decisions of the local cluster that need no cluster."""

import json
import subprocess
from pathlib import Path

import pytest
from cluster import before, binaries, containers, gotool, health, mounts, network, node, paths, ports
from cluster.errors import ClusterError
from cluster.health import Component
from cluster.processes import Identity, Processes, Program, is_alive, parse_record, parse_stat

STAT = "4711 (a (b) c) S 1 4711 4711 0 -1 4194304 66 0 0 0 0 0 0 0 20 0 1 0 200245 2654208 403"


def test_a_stat_line_is_read_behind_its_last_bracket() -> None:
    assert parse_stat(STAT) == (4711, 200245, "S")


@pytest.mark.parametrize("torn", ["", STAT, STAT[:20] + "\nboot", "\nboot\n"])
def test_a_torn_record_is_no_record(torn: str) -> None:
    assert parse_record(torn) is None


def test_a_whole_record_is_read() -> None:
    assert parse_record(f"{STAT}\nboot-1\n") == Identity(4711, 200245, "boot-1")


def test_a_process_is_started_found_and_ended(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    identity = running.start(Program("sleeper", ["sleep", "600"]))
    assert b"sleep" in Path(f"/proc/{identity.pid}/cmdline").read_bytes()
    assert Processes(tmp_path).alive("sleeper"), "another command finds it by its record"
    running.stop("sleeper")
    assert not is_alive(identity)
    assert running.names() == []


def test_a_process_that_ignores_the_polite_signal_is_ended(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    identity = running.start(Program("deaf", ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]))
    running.stop("deaf", grace=0.3)
    assert not is_alive(identity)


def test_a_pid_that_another_process_got_is_left_alone(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        stat, boot = Path(f"/proc/{stranger.pid}/stat").read_text(), Path("/proc/sys/kernel/random/boot_id").read_text()
        pid, started, _ = parse_stat(stat)
        running.record("ours").write_text(stat.replace(f" {started} ", f" {started - 1} ") + boot)
        assert running.identity("ours") == Identity(pid, started - 1, boot.strip())
        running.stop("ours")
        assert stranger.poll() is None, "a process that only shares the pid was ended"
        stranger.kill()


def test_a_record_of_an_earlier_boot_names_nobody(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    identity = running.start(Program("sleeper", ["sleep", "600"]))
    assert not is_alive(Identity(identity.pid, identity.started, "another-boot"))
    running.stop("sleeper")


def test_a_program_that_dies_while_starting_is_told_with_its_log(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    running.start(Program("broken", ["sh", "-c", "echo no such luck >&2; exit 3"]))
    with pytest.raises(ClusterError, match=r"(?s)broken ended while starting.*no such luck"):
        running.wait_ready("broken", lambda: False, timeout=30)


def test_who_holds_a_port_is_named() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        told = ports.holder(listener.getsockname()[1])
    assert told is not None
    assert "python" in told or "pytest" in told


def test_only_listening_sockets_hold_a_port() -> None:
    table = (
        "  sl  local_address rem_address   st tx rx tr tm->when retrnsmt uid timeout inode\n"
        "   0: 0100007F:1388 00000000:0000 0A 0:0 0:0 0 0 0 111 1\n"
        "   1: 0100007F:1388 0100007F:9C40 01 0:0 0:0 0 0 0 222 1\n"
    )
    assert ports.listening_inodes(table, 5000) == {"111"}
    assert ports.listening_inodes(table, 5001) == set()


def test_mounts_of_ours_are_found_deepest_first_and_no_neighbours() -> None:
    table = (
        "tmpfs /var/lib/disagg-cluster/kubelet tmpfs rw 0 0\n"
        "tmpfs /var/lib/disagg-cluster/kubelet/pods/a\\040b tmpfs rw 0 0\n"
        "tmpfs /var/lib/disagg-cluster-of-another/x tmpfs rw 0 0\n"
    )
    found = mounts.below(mounts.mount_points(table), [Path("/var/lib/disagg-cluster")])
    assert found == ["/var/lib/disagg-cluster/kubelet/pods/a b", "/var/lib/disagg-cluster/kubelet"]


def test_settings_are_put_back_and_unknown_ones_skipped(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "panic").write_text("10\n")
    before.write_settings({"kernel/panic": "1", "kernel/absent": "5"}, tmp_path)
    assert before.read_settings(before.SETTINGS, tmp_path) == {"kernel/panic": "1"}
    assert not (tmp_path / "kernel" / "absent").exists()


def test_the_note_of_what_was_there_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text(json.dumps({"settings": {}, "missing": []}))
    before.keep(tmp_path)
    assert json.loads((tmp_path / "before.json").read_text()) == {"settings": {}, "missing": []}


@pytest.mark.parametrize(
    ("told", "enough"),
    [
        ("go version go1.26.6 linux/amd64", True),
        ("go version go1.26.10 linux/amd64", True),
        ("go version go1.27 linux/amd64", True),
        ("go version go1.26.5 linux/amd64", False),
        ("go version devel linux/amd64", False),
        ("", False),
    ],
)
def test_go_is_judged_by_number(told: str, enough: bool) -> None:
    assert gotool.is_new_enough(told) is enough


OTHER_NAMES = {"etcd": "server", "keda": "operator", "keda-adapter": "adapter", "keda-admission-webhooks": "webhooks"}


def test_every_binary_has_a_pinned_version_and_a_name_that_go_gives_it() -> None:
    for module in binaries.MODULES:
        go_mod = (paths.TOOLS / module.name / "go.mod").read_text()
        assert "-mod=readonly" in binaries.build_flags(module, go_mod)
        for name, package in module.binaries.items():
            assert binaries.pinned_version(name).startswith("v"), name
            assert binaries.go_name(package) == OTHER_NAMES.get(name, name)


def test_the_cluster_asks_for_no_optional_binary() -> None:
    assert "kubelet" in binaries.GROUPS["cluster"]
    assert {"metrics-server", "keda", "prometheus"} <= set(binaries.GROUPS["optional"])
    assert not set(binaries.GROUPS["optional"]) & set(binaries.GROUPS["cluster"])


def test_a_stamp_moves_with_all_that_decides_a_binary() -> None:
    first = ("package", ["-s"], "go1.26.6", b"mod", b"sum")
    others = [("p", *first[1:]), (first[0], ["-w"], *first[2:]), (*first[:2], "go1.27", *first[3:]), (*first[:4], b"s")]
    stamps = {binaries.build_stamp(*one) for one in [first, *others]}
    assert len(stamps) == 1 + len(others)
    assert binaries.build_stamp("package", ["-s"], "go1.26.6", b"mod", b"sum") in stamps


def test_a_version_that_go_mod_lacks_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"does not require example\.org/x"):
        binaries.required_version("module m\n\nrequire example.org/xy v1.0.0\n", "example.org/x")


def test_missing_binaries_are_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ClusterError, match=r"not built yet: etcd; `make binaries` builds them"):
        binaries.require(["etcd"])


def test_only_shims_of_our_containerd_are_ours() -> None:
    ours = f"/x/containerd-shim-runc-v2\0-address\0{node.SOCKET}\0".encode()
    assert containers.is_shim(ours)
    assert not containers.is_shim(b"/x/containerd-shim-runc-v2\0-address\0/run/containerd/containerd.sock\0")
    assert not containers.is_shim(f"vim\0{node.SOCKET}\0".encode())


def test_only_a_marked_bridge_is_ours() -> None:
    assert network.is_ours({"ifname": "cni0", "ifalias": "disagg-cluster"})
    assert not network.is_ours({"ifname": "cni0"})
    assert not network.is_ours({"ifname": "eth0", "ifalias": "disagg-cluster"})


def test_a_dns_reply_counts_with_a_record_and_without_an_error() -> None:
    query = health.build_dns_query("a.bc")
    assert query[12:] == b"\x01a\x02bc\x00\x00\x01\x00\x01"
    assert health.has_answer(b"\0\x01\x81\x80\0\x01\0\x01\0\0\0\0")
    assert not health.has_answer(b"\0\x01\x81\x83\0\x01\0\0\0\0\0\0"), "no such name"
    assert not health.has_answer(b"\0\x01\x81\x82\0\x01\0\x01\0\0\0\0"), "the server failed"
    assert not health.has_answer(b"\0\x01")


def test_the_table_is_aligned() -> None:
    text = health.table([Component("etcd", True, "v3", "pid 1"), Component("kubelet", False, "", "not running")])
    lines = text.splitlines()
    assert len({line.index(word) for line, word in zip(lines, ["WHERE", "pid 1", "not running"], strict=True)}) == 1
    assert "NOT WELL" in lines[2]
