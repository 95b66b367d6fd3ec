"""What is read off Deployments and pods."""

from pathlib import Path
from typing import Any

import pytest
from disagg_operator.api.names import Component
from disagg_operator.status.observation import (
    count_shared,
    find_store_note,
    is_creating,
    last_warning,
    observe_part,
    pod_failures,
    pods_of,
)

Json = dict[str, Any]
WANTED: Json = {"kind": "Deployment", "metadata": {"name": "llama-decode"}, "spec": {"replicas": 2}}


def deployment(generation: int = 1, **status: Any) -> Json:
    done = {"observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}
    return {**WANTED, "metadata": {"name": "llama-decode", "generation": generation}, "status": {**done, **status}}


def pod(role: str = "decode", name: str = "p", **status: Any) -> Json:
    return {"metadata": {"name": name, "labels": {"inference.disagg.io/role": role}}, "status": status}


def test_a_done_rollout_is_settled() -> None:
    part = observe_part(Component.DECODE, WANTED, deployment(), [])
    assert part.is_settled
    assert (part.wished, part.replicas, part.ready, part.updated) == (2, 2, 2, 2)


@pytest.mark.parametrize(
    "live",
    [
        None,
        {**WANTED, "metadata": {"name": "llama-decode", "generation": 1}},
        deployment(generation=2),
        deployment(replicas=3),
        deployment(readyReplicas=1),
        deployment(updatedReplicas=0),
    ],
    ids=["missing", "new", "unseen", "surplus", "unready", "old"],
)
def test_anything_else_is_not(live: Json | None) -> None:
    assert not observe_part(Component.DECODE, WANTED, live, []).is_settled


def test_a_count_that_the_manifest_leaves_out_is_the_live_ones() -> None:
    wanted = {**WANTED, "spec": {}}
    assert observe_part(Component.DECODE, wanted, deployment(), []).wished == 2
    assert observe_part(Component.DECODE, None, deployment(), []).wished == 2


def test_lost_is_what_was_there_before() -> None:
    completed = [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]
    moving = [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]
    assert observe_part(Component.DECODE, WANTED, deployment(readyReplicas=0, conditions=completed), []).is_lost
    assert not observe_part(Component.DECODE, WANTED, deployment(readyReplicas=0, conditions=moving), []).is_lost
    nothing = {**WANTED, "spec": {"replicas": 0}}
    assert not observe_part(Component.DECODE, nothing, deployment(readyReplicas=0, conditions=completed), []).is_lost


def test_pods_that_cannot_be_made() -> None:
    failure = [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]
    part = observe_part(Component.DECODE, WANTED, deployment(conditions=failure), [])
    assert part.failures == ("pods cannot be made: exceeded quota",)


def container(**state: Any) -> Json:
    return {"name": "engine", "ready": False, **state}


FAILURES: dict[str, tuple[Json, str]] = {
    "image": (
        {"containerStatuses": [container(state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})]},
        "pod p, container engine does not start: ImagePullBackOff: not found",
    ),
    "secret": (
        {
            "containerStatuses": [
                container(
                    state={
                        "waiting": {
                            "reason": "CreateContainerConfigError",
                            "message": "couldn't find key token in Secret team-a/hf",
                        }
                    }
                )
            ]
        },
        "couldn't find key token in Secret team-a/hf",
    ),
    "memory": (
        {
            "containerStatuses": [
                container(
                    state={"waiting": {"reason": "CrashLoopBackOff"}},
                    lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                )
            ]
        },
        "pod p, container engine ended: OOMKilled (exit 137)",
    ),
    "crash": (
        {
            "containerStatuses": [
                container(
                    state={"waiting": {"reason": "CrashLoopBackOff"}},
                    lastState={
                        "terminated": {
                            "reason": "Error",
                            "exitCode": 1,
                            "message": "INFO up\nValueError: no such model\nINFO down\n",
                        }
                    },
                )
            ]
        },
        "pod p, container engine ended: Error (exit 1): ValueError: no such model",
    ),
    "init": (
        {
            "initContainerStatuses": [
                {"name": "mooncake-config", "ready": False, "state": {"terminated": {"exitCode": 2, "message": "bad"}}}
            ]
        },
        "pod p, container mooncake-config ended: Error (exit 2): bad",
    ),
    "node": (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: insufficient gpu"}]},
        "pod p cannot be scheduled: 0/1 nodes: insufficient gpu",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_why_a_pod_does_not_run(case: str) -> None:
    status, told = FAILURES[case]
    (failure,) = pod_failures(pod(**status))
    assert told in failure


def crash(log: str) -> Json:
    """A pod's status after its engine has ended with this log."""
    terminated = {"reason": "Error", "exitCode": 1, "message": log}
    crashed = container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": terminated})
    return {"containerStatuses": [crashed]}


@pytest.mark.parametrize(
    "line",
    [
        "E1130 06:00:00 rdma_context.cpp:143] Failed to register memory 0x7f2a80000000: Cannot allocate memory [12]",
        "W1130 06:00:00 rdma_context.cpp:131] The buffer length 85899345920 exceeds device max_mr_size 34359738368",
    ],
)
def test_words_of_engines_that_mislead_come_with_a_remedy(line: str) -> None:
    """Field case C106: memory is free, and the node's memlock limit or the NIC's is not."""
    log = f"INFO up\n{line}\nERROR the engine core died\nRuntimeError: Engine core initialization failed.\n"
    (failure,) = pod_failures(pod(**crash(log)))
    assert line[-60:] in failure
    for word in ("memlock", "spec.kvStore.segmentSize", "max_mr_size)"):
        assert word in failure
    (other,) = pod_failures(pod(**crash("ValueError: no such model\n")))
    assert "memlock" not in other


def test_the_remedy_is_in_the_documentation() -> None:
    """Field case C106."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    assert all(word in text for word in ("Cannot allocate memory", "LimitMEMLOCK=infinity", "ibv_devinfo -v"))


def engine_pod(name: str, note: str, created: str = "2026-11-30T06:00:00Z", **metadata: Any) -> Json:
    """An engine's pod whose init container has ended well, and left a note or an empty one."""
    ended = {"exitCode": 0, "reason": "Completed", "message": note}
    init = {"name": "mooncake-config", "ready": True, "state": {"terminated": ended}}
    status = {"initContainerStatuses": [init]}
    return {"metadata": {"name": name, "creationTimestamp": created, **metadata}, "status": status}


def test_what_an_engine_said_that_started_without_the_store() -> None:
    """Field case C103: the newest pod that stays and has something to say."""
    old = engine_pod("old", "mc:1: connection refused")
    new = engine_pod("new", "mc:2: connection refused", "2026-11-30T07:00:00Z")
    content = engine_pod("content", "", "2026-11-30T08:00:00Z")
    leaving = engine_pod("leaving", "mc:3", "2026-11-30T09:00:00Z", deletionTimestamp="2026-11-30T09:01:00Z")
    assert find_store_note([old, new, content, leaving]) == "pod new said at its start: mc:2: connection refused"
    assert find_store_note([content, leaving, pod()]) == ""
    failed = engine_pod("failed", "error: no interface")
    failed["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] = 2
    assert find_store_note([failed]) == "", "a failure is told as one"


@pytest.mark.parametrize(
    "state",
    [
        {"waiting": {"reason": "ContainerCreating"}},
        {"waiting": {"reason": "PodInitializing"}},
        {"running": {}},
        {"terminated": {"exitCode": 0}},
    ],
    ids=str,
)
def test_what_only_takes_time_is_no_failure(state: Json) -> None:
    assert pod_failures(pod(containerStatuses=[container(state=state)])) == []


def test_a_pod_that_has_come_back_is_no_failure() -> None:
    status = {"name": "engine", "ready": True, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}}
    assert pod_failures(pod(containerStatuses=[status])) == []


def test_long_messages_are_cut() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "x" * 9999}}
    assert len(pod_failures(pod(containerStatuses=[container(state=waiting)]))[0]) <= 400


def test_pods_of_a_part() -> None:
    leaving = pod(name="leaving")
    leaving["metadata"]["deletionTimestamp"] = "now"
    pods = [pod(name="a"), pod("prefill", "b"), pod("decode-worker", "c"), leaving]
    assert [each["metadata"]["name"] for each in pods_of(Component.DECODE, pods)] == ["a", "c", "leaving"]


def test_a_pod_without_room_is_no_failure_while_another_leaves() -> None:
    homeless = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}])
    (failure,) = observe_part(Component.DECODE, WANTED, deployment(), [homeless]).failures
    assert "Insufficient memory" in failure
    leaving = pod(name="leaving", containerStatuses=[container(state={"waiting": {"reason": "ErrImagePull"}})])
    leaving["metadata"]["deletionTimestamp"] = "now"
    assert observe_part(Component.DECODE, WANTED, deployment(), [homeless, leaving]).failures == ()


def test_only_segments_of_ready_engines_count() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    pods = [
        pod("prefill", podIPs=[{"ip": "10.0.0.1"}], conditions=ready),
        pod("decode", podIPs=[{"ip": "fd00::1"}], conditions=ready),
        pod("decode", podIPs=[{"ip": "10.0.0.3"}]),
        pod("master", podIPs=[{"ip": "10.0.0.4"}], conditions=ready),
    ]
    segments = ["10.0.0.1:13520", "10.0.0.1:13521", "[fd00::1]:1", "10.0.0.3:1", "10.0.0.4:1", "10.0.0.9:1"]
    assert count_shared(segments, pods) == 3
    assert count_shared(["fd00::1", "10.0.0.1"], pods) == 2


WAITS = {"state": {"waiting": {"reason": "PodInitializing"}}}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"containerStatuses": [container(state={"waiting": {"reason": "ContainerCreating"}})]}, True),
        ({"initContainerStatuses": [container(**WAITS)], "containerStatuses": [container(**WAITS)]}, True),
        (
            {"initContainerStatuses": [container(state={"running": {}})], "containerStatuses": [container(**WAITS)]},
            False,
        ),
        ({"containerStatuses": [container(state={"waiting": {"reason": "ErrImagePull"}})]}, False),
        ({"containerStatuses": [container(state={"running": {}})]}, False),
        ({}, False),
    ],
    ids=["creating", "before-init", "init-runs", "image", "runs", "unscheduled"],
)
def test_pods_of_which_only_events_tell(status: Json, told: bool) -> None:
    assert is_creating(pod(**status)) is told


def test_the_last_warning_about_a_volume_counts() -> None:
    def event(reason: str, message: str, at: str) -> Json:
        return {"reason": reason, "message": message, "lastTimestamp": at}

    events = [
        event("FailedMount", 'secret "keys" not found', "2026-11-30T00:00:02Z"),
        event("FailedMount", "older", "2026-11-30T00:00:01Z"),
        event("Unhealthy", "newer, of another kind", "2026-11-30T00:00:03Z"),
    ]
    assert last_warning(pod(), events) == 'pod p does not start: FailedMount: secret "keys" not found'
    assert last_warning(pod(), []) == ""
    part = observe_part(Component.DECODE, WANTED, deployment(readyReplicas=1), [pod()], {"p": "it hangs"})
    assert part.failures == ("it hangs",)
