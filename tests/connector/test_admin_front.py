"""The front of the master's admin port, before a real master: reads of listed pages pass, and nothing else does."""

import http.client
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from connector.environment import program
from connector.processes import Process, accepts, answers, free_port, wait_until

_CONFIG = Path(__file__).parents[2] / "images" / "store" / "admin-front.cfg"
_HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
pytestmark = pytest.mark.skipif(_HAPROXY is None, reason="HAProxy is not installed: apt-get install haproxy")

_PAGES = ("/health", "/metrics", "/metrics/summary", "/role", "/ha_status", "/get_all_segments", "/get_segments_detail")


@dataclass(frozen=True)
class Pod:
    """What runs in a master's pod: its ports, and the two programs."""

    front_port: int
    admin_port: int
    master: Process
    front: Process

    def ask(self, method: str, path: str) -> int:
        """The status of an answer. The path goes out as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.front_port, timeout=10)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()


@contextmanager
def started(folder: Path, **front_env: str) -> Iterator[Pod]:
    front_port, admin_port, rpc_port = free_port(), free_port(), free_port()
    flags = [f"--rpc_port={rpc_port}", f"--metrics_port={admin_port}", "--metrics_host=127.0.0.1", "--logtostderr"]
    master = Process([program("mooncake_master"), "--rpc_address=127.0.0.1", *flags], folder / "master.log")
    env = {"FRONT_PORT": str(front_port), "MASTER_ADMIN_PORT": str(admin_port), **front_env}
    front = Process([str(_HAPROXY), "-db", "-f", str(_CONFIG)], folder / "front.log", env)
    try:
        url = f"http://127.0.0.1:{front_port}/health"
        wait_until("the master through its front", 30, lambda: master.is_running and answers(url), front)
        yield Pod(front_port, admin_port, master, front)
    finally:
        front.stop()
        master.stop()


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    with started(tmp_path_factory.mktemp("front")) as running:
        yield running


@pytest.mark.parametrize("path", _PAGES)
def test_listed_pages_pass(pod: Pod, path: str) -> None:
    assert pod.ask("GET", path) == 200


def test_a_query_of_a_listed_page_passes_as_it_is(pod: Pod) -> None:
    assert pod.ask("GET", "/query_segment?segment=nobody") == 500, "the master's own answer to a name that is not there"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"])
def test_other_methods_are_refused(pod: Pod, method: str) -> None:
    assert pod.ask(method, "/health") == 405


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/remove_all",
        "/get_all_keys",
        "/remove_all?/health",
        "/health/",
        "/HEALTH",
        "//health",
        "/%68ealth",
        "/metrics/../remove_all",
        "/health;remove_all",
        "/health%2f..%2fremove_all",
    ],
)
def test_other_paths_are_refused(pod: Pod, path: str) -> None:
    assert pod.ask("GET", path) == 403


def test_a_request_behind_another_is_judged_too(pod: Pod) -> None:
    head = b"HTTP/1.1\r\nHost: a\r\n"
    with socket.create_connection(("127.0.0.1", pod.front_port), timeout=10) as client:
        client.sendall(b"GET /health " + head + b"\r\nGET /remove_all " + head + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert re.findall(rb"HTTP/1\.\d (\d+)", answer) == [b"200", b"403"]


def test_the_front_listens_on_ipv4_and_ipv6(pod: Pod) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    with socket.create_connection(("::1", pod.front_port), timeout=10):
        assert accepts(pod.front_port)


def test_the_front_binds_one_address_where_it_is_told_so(tmp_path: Path) -> None:
    with started(tmp_path, FRONT_ADDRESS="127.0.0.1") as pod:
        listeners = Path("/proc/net/tcp6")
        assert pod.ask("GET", "/health") == 200
        assert not listeners.exists() or f":{pod.front_port:04X} 0000" not in listeners.read_text()


def test_a_master_that_is_gone_is_503_and_comes_back(tmp_path: Path) -> None:
    with started(tmp_path) as pod:
        pod.master.stop()
        wait_until("503", 20, lambda: pod.ask("GET", "/health") == 503, pod.front)
        assert pod.ask("GET", "/remove_all") == 403
        flags = [f"--rpc_port={free_port()}", f"--metrics_port={pod.admin_port}", "--metrics_host=127.0.0.1"]
        again = Process([program("mooncake_master"), "--rpc_address=127.0.0.1", *flags], tmp_path / "again.log")
        try:
            wait_until("the new master", 20, lambda: pod.ask("GET", "/health") == 200, again)
        finally:
            again.stop()
