"""What an engine pod does before its engine starts."""

import http.server
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mooncake_store_connector.__main__ import main
from mooncake_store_connector.prepare import (
    find_metadata_fault,
    leave_note,
    master_state,
    pod_address,
    pod_config,
    wait_for_store,
    write_atomically,
)
from mooncake_store_connector.problems import ConfigError

TEMPLATE = '{"master_server_address": "mc:50051", "local_hostname": "$POD_IP", "global_segment_size": "1Gi"}'


@contextmanager
def _listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class _Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@contextmanager
def _serving(handler: type[_Quiet]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _health(ready: object) -> Iterator[str]:
    class Handler(_Quiet):
        def do_GET(self) -> None:
            body = json.dumps({"service_ready": ready}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    with _serving(Handler) as url:
        yield f"{url}/health"


@pytest.mark.parametrize("address", ["10.0.0.5", "fd00::12"])
def test_each_pod_has_its_own_address(address: str) -> None:
    """Field cases C02, C04 and C44."""
    values = json.loads(pod_config(TEMPLATE, address))
    assert values["local_hostname"] == address
    assert values["global_segment_size"] == 1 << 30


@pytest.mark.parametrize("template", ["", "[]", "{", "null", '{"master_server_address": ""}'])
def test_a_bad_template_is_refused(template: str) -> None:
    with pytest.raises(ConfigError):
        pod_config(template, "10.0.0.5")


def test_the_address_is_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_IP", " 10.0.0.5 ")
    assert pod_address(None) == "10.0.0.5"
    monkeypatch.delenv("POD_IP")
    with pytest.raises(ConfigError, match="downward API"):
        pod_address(None)


def test_the_address_is_the_interfaces() -> None:
    """Field case C55."""
    assert pod_address("lo") == "127.0.0.1"
    with pytest.raises(ConfigError) as caught:
        pod_address("net1")
    (problem,) = caught.value.problems
    assert "net1" in problem.found
    assert "lo" in problem.remedy


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mooncake_config.json"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_master_that_accepts_is_ready() -> None:
    with _listening() as port:
        assert master_state(f"127.0.0.1:{port}", None).is_ready


@pytest.mark.parametrize(("ready", "expected"), [(True, True), (False, False), (None, False)])
def test_a_health_page_is_believed(ready: object, expected: bool) -> None:
    with _health(ready) as url:
        assert master_state("127.0.0.1:1", url).is_ready is expected


def test_what_was_tried_and_the_likely_cause_are_told() -> None:
    """Field case C103."""
    with _listening() as port:
        pass
    refused = wait_for_store(f"127.0.0.1:{port}", None, 0)
    assert not refused.is_ready
    assert f"127.0.0.1:{port}: connection refused" in refused.seen
    assert "does not resolve" in wait_for_store("no-such-host.invalid:50051", None, 0).seen


@contextmanager
def _metadata() -> Iterator[str]:
    """What Mooncake's metadata service answers to a request without a key, and at other paths."""

    class Handler(_Quiet):
        def do_GET(self) -> None:
            self.send_error(400 if self.path == "/metadata" else 404)

    with _serving(Handler) as url:
        yield url


def test_a_metadata_service_is_asked_at_its_path() -> None:
    """Field case C103."""
    with _metadata() as url, _listening() as port:
        assert find_metadata_fault(f"{url}/metadata") == ""
        assert find_metadata_fault(f"{url}/other").startswith(f"{url}/other: HTTP 404")
        found = wait_for_store(f"127.0.0.1:{port}", None, 0, f"{url}/other")
        assert (found.is_ready, "/metadata" in found.seen) == (False, True)
    assert "connection refused" in find_metadata_fault(f"{url}/metadata")
    assert find_metadata_fault("P2PHANDSHAKE") == ""


def test_other_stores_of_metadata_are_tried_host_by_host() -> None:
    with _listening() as port:
        pass
    with _listening() as other:
        assert find_metadata_fault(f"etcd://127.0.0.1:{port},127.0.0.1:{other}") == ""
        assert find_metadata_fault(f"redis://127.0.0.1:{other}") == ""
    told = find_metadata_fault(f"etcd://127.0.0.1:{port},127.0.0.1:{other}")
    assert told.startswith(f"127.0.0.1:{port}: connection refused")


def test_what_speaks_no_http_is_told() -> None:
    """A wrong port may belong to anybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                with peer:
                    peer.recv(1024)
                    peer.sendall(b"not HTTP at all\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert find_metadata_fault(f"{url}/metadata").startswith(f"{url}/metadata: not HTTP")
        assert url in master_state("127.0.0.1:1", f"{url}/health").seen


def test_a_note_is_left_where_a_kubelet_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    leave_note("nobody asks", path)
    assert not path.exists()
    path.touch()
    leave_note("mc:1: connection refused", path)
    assert path.read_text() == "mc:1: connection refused"


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mooncake_store_connector", *arguments])
    return main()


def test_the_engine_starts_without_a_master(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field case C103: without the store by choice, and the pod's status says why."""
    template, output = tmp_path / "template.json", tmp_path / "out.json"
    template.write_text(TEMPLATE.replace("mc:50051", "no-such-host.invalid:1"))
    monkeypatch.setenv("POD_IP", "10.0.0.5")
    notes: list[str] = []
    monkeypatch.setattr("mooncake_store_connector.__main__.leave_note", notes.append)
    files = ("--template", str(template), "--output", str(output))
    assert _run(monkeypatch, "prepare", *files, "--wait-master", "0s") == 0
    assert json.loads(output.read_text())["local_hostname"] == "10.0.0.5"
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 1
    assert "no-such-host.invalid:1" in told[0]
    assert "starts all the same" in told[0]
    assert [("no-such-host.invalid:1: the name does not resolve" in note) for note in notes] == [True]


def test_check_tells_problems_and_warnings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mooncake_config.json"
    path.write_text(TEMPLATE)
    assert _run(monkeypatch, "check", "--config", str(path)) == 0
    assert "warning: mooncake_config.json.local_hostname" in capsys.readouterr().out
    path.write_text('{"protocol": "x", "mode": "y"}')
    assert _run(monkeypatch, "check", "--config", str(path)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    path.write_text("[]")
    assert _run(monkeypatch, "check", "--config", str(path)) == 2
    assert "one JSON object" in capsys.readouterr().err


@pytest.mark.parametrize("wait", ["soon", "-1s"])
def test_a_wait_that_is_no_duration(monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    assert _run(monkeypatch, "prepare", "--template", "a", "--output", "b", f"--wait-master={wait}") == 2
