"""The API server for tests: real, with RBAC and an audit log, and gone afterwards."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import apiserver, binaries
from cluster.apiserver import ApiServer
from cluster.processes import Processes

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "namespace": "default"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    binaries.require(binaries.GROUPS["kubernetes-control-plane"])
    with apiserver.start(tmp_path_factory.mktemp("server"), controllers=apiserver.CONTROLLERS) as started:
        yield started


def wait_until(question: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + 60
    while not question():
        assert time.monotonic() < deadline, f"{what}: not within 60 s"
        time.sleep(0.2)


def as_user(server: ApiServer, kubeconfig: Path, *args: str) -> tuple[int, str]:
    done = server.kubectl("--kubeconfig", str(kubeconfig), *args)
    return done.returncode, done.stdout + done.stderr


def test_tells_the_version_that_go_mod_pins(server: ApiServer) -> None:
    told = json.loads(server.kubectl("version", "-o", "json").stdout)
    pinned = binaries.pinned_version("kube-apiserver")
    assert told["serverVersion"]["gitVersion"] == pinned
    assert told["clientVersion"]["gitVersion"] == pinned


def test_a_user_without_a_role_is_refused_and_with_one_is_not(server: ApiServer) -> None:
    nobody = server.kubeconfig_for("nobody")
    status, text = as_user(server, nobody, "get", "pods")
    assert status != 0
    assert 'User "nobody" cannot list resource "pods"' in text
    member = server.kubeconfig_for("somebody", ["readers"])
    server.kubectl("create", "clusterrolebinding", "readers", "--clusterrole=view", "--group=readers")
    wait_until(lambda: as_user(server, member, "get", "pods")[0] == 0, what="the role's arrival")


def test_a_service_account_token_is_known_by_its_name(server: ApiServer) -> None:
    server.kubectl("create", "serviceaccount", "robot")
    status, text = as_user(server, server.token_kubeconfig("default", "robot"), "auth", "whoami")
    assert status == 0
    assert "system:serviceaccount:default:robot" in text


def test_the_audit_log_tells_who_wrote_and_not_who_read(server: ApiServer) -> None:
    writer = server.kubeconfig_for("writer", ["system:masters"])
    assert as_user(server, writer, "create", "configmap", "audited")[0] == 0
    assert as_user(server, writer, "get", "configmap", "audited")[0] == 0
    events = [event for event in server.audit() if event["user"] == {"username": "writer", **_groups(event)}]
    assert [event["verb"] for event in events] == ["create"]


def _groups(event: dict[str, object]) -> dict[str, object]:
    user = event["user"]
    assert isinstance(user, dict)
    return {key: value for key, value in user.items() if key != "username"}


def test_children_go_with_their_owner(server: ApiServer) -> None:
    server.kubectl("create", "configmap", "owner")
    owner = json.loads(server.kubectl("get", "configmap", "owner", "-o", "json").stdout)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    child = {**CONFIG_MAP, "metadata": {**CONFIG_MAP["metadata"], "ownerReferences": [reference]}}  # type: ignore[dict-item]
    assert server.kubectl("apply", "-f", "-", stdin=json.dumps(child)).returncode == 0
    server.kubectl("delete", "configmap", "owner")
    wait_until(
        lambda: not server.kubectl("get", "configmap", "owned", "--ignore-not-found", "-o", "name").stdout.strip(),
        what="the child's end",
    )


def test_no_process_outlives_the_block(tmp_path: Path) -> None:
    with apiserver.start(tmp_path):
        running = Processes(tmp_path / "processes")
        identities = [running.identity(name) for name in running.names()]
        assert len(identities) == 2
    assert not any(Path(f"/proc/{one.pid}").exists() for one in identities if one)
