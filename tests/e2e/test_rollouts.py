"""Changes of a model under requests, on real engines: both roles in proportion, a bad change, a pause."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from demo.client import call
from demo.cluster import Cluster
from demo.kubectl import condition, wait_until
from e2e import load
from e2e.stack import Served, example, serve

pytestmark = pytest.mark.long
NAMESPACE = "e2e-rollouts"
KV_REVISION = "inference.disagg.io/kv-revision"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    """Two pods of each role, replaced in place: four engines are what two cores bear."""
    resource = example("rolling", dtype="float32")
    for role in ("prefill", "decode"):
        resource["spec"][role] |= {"replicas": 2, "rollout": {"maxSurge": 0, "maxUnavailable": 1}}
    with serve(cluster, NAMESPACE, resource) as up:
        yield up


def ready_by_revision(served: Served, role: str) -> dict[str, int]:
    """Ready pods of a role, by KV revision."""
    found: dict[str, int] = {}
    for pod in served.pods(role):
        if condition(pod, "Ready").get("status") == "True":
            revision = pod["metadata"]["labels"][KV_REVISION]
            found[revision] = found.get(revision, 0) + 1
    return found


@dataclass
class Watch:
    """What was seen of both roles, each time that it changed: ready pods of the old and of the new KV revision."""

    seen: list[tuple[int, int, int, int]] = field(default_factory=list)


@contextmanager
def watching(served: Served, old: str) -> Iterator[Watch]:
    """Look at the pods twice a second while the block runs."""
    watch, stop = Watch(), threading.Event()

    def look() -> None:
        while not stop.is_set():
            counts = [ready_by_revision(served, role) for role in ("prefill", "decode")]
            now = [part for each in counts for part in (each.get(old, 0), sum(each.values()) - each.get(old, 0))]
            seen = (now[0], now[1], now[2], now[3])
            if not watch.seen or watch.seen[-1] != seen:
                watch.seen.append(seen)
            time.sleep(0.5)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join(timeout=60)


def roll(served: Served, *args: str) -> None:
    """Change the shared flags, and wait for the end of the rollout."""
    served.edit(engine={"args": list(args)})
    served.wait_for("Ready", "True", timeout=1200)


def text_of(served: Served, question: dict[str, Any]) -> str:
    """The text that a question is answered with, greedily."""
    answer = call(f"{served.url()}/v1/chat/completions", question)
    assert answer.status == 200, answer.body
    return str(answer.json()["choices"][0]["message"]["content"])


def ask_until(
    is_over: Callable[[], bool], served: Served, questions: list[dict[str, Any]]
) -> Iterator[tuple[int, str]]:
    """Ask the same questions in turn until it is over. Yields number and answer."""
    for number in itertools.cycle(range(len(questions))):
        if is_over():
            return
        yield number, text_of(served, questions[number])


def test_both_roles_move_in_proportion_and_no_request_fails(served: Served) -> None:
    (old,) = ready_by_revision(served, "decode")
    flags = served.resource()["spec"]["engine"]["args"]
    questions = [load.body(number, max_tokens=16) for number in range(6)]
    before = [text_of(served, question) for question in questions]
    with load.running(served.url(), longest=1200) as answered, watching(served, old) as watch:
        with ThreadPoolExecutor(1) as beside:
            rolling = beside.submit(roll, served, *flags, "--block-size", "64")
            meanwhile = list(ask_until(rolling.done, served, questions))
            rolling.result()
        time.sleep(5)
    # Field case C58: pods of both layouts use one store, and none reads what is not its own.
    assert all(answer == before[number] for number, answer in meanwhile)
    assert [text_of(served, question) for question in questions] == before
    assert answered.failures() == []
    assert len(answered.answers) > 10
    assert watch.seen[-1] == (0, 2, 0, 2), watch.seen
    for old_prefill, new_prefill, old_decode, new_decode in watch.seen:
        assert old_prefill + new_prefill >= 1, watch.seen
        assert old_decode + new_decode >= 1, watch.seen
        # One role is not done before the other has begun.
        assert (new_prefill, new_decode) not in {(2, 0), (0, 2)}, watch.seen


def test_a_bad_flag_keeps_the_old_serving_and_a_revert_heals(served: Served) -> None:
    flags = served.resource()["spec"]["engine"]["args"]
    before = served.pod_names("decode") | served.pod_names("prefill")
    with load.running(served.url(), longest=1200) as answered:
        served.edit(decode={"args": ["--no-such-flag"]})
        told = served.wait_for("Degraded", "True", reason="PodFailing", timeout=600)
        assert "no-such-flag" in told["message"], told
        assert "rolling-decode-" in told["message"], "the pod is named"
        assert served.condition("Available")["status"] == "True"
        served.edit(decode={"args": []})
        served.wait_for("Ready", "True", timeout=600)
    assert answered.failures() == []
    kept = (served.pod_names("decode") | served.pod_names("prefill")) & before
    assert len(kept) == 3, "of four pods one was replaced in place"
    assert served.resource()["spec"]["engine"]["args"] == flags


def test_a_pause_holds_and_then_it_goes_on(served: Served) -> None:
    before = served.pod_names("decode")
    served.edit(paused=True, decode={"env": [{"name": "NOTE", "value": "1"}]})
    served.wait_for("Ready", "False", reason="Paused", timeout=60)
    time.sleep(15)
    assert served.pod_names("decode") == before
    assert call(f"{served.url()}/v1/chat/completions", load.body(1)).status == 200
    served.edit(paused=False)
    served.wait_for("Ready", "True", timeout=900)
    wait_until(lambda: not served.pod_names("decode") & before, timeout=300, what="every decode pod is new")
