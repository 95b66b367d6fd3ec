"""The main job in one go: a resource becomes a served model, answers by way of the store, and goes away whole."""

from collections.abc import Iterator

import pytest
from demo.client import cache_use, call, complete
from demo.cluster import Cluster
from demo.kubectl import condition
from e2e import load
from e2e.stack import MODEL, Served, example, serve

NAMESPACE = "e2e-smoke"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    """The example, Ready, in a namespace that enforces Pod Security "restricted"; its end is checked by `serve`."""
    with serve(cluster, NAMESPACE, example("smoke")) as up:
        yield up


def test_status_tells_what_is_there(served: Served) -> None:
    served.wait_for("KVSharing", "True", timeout=120)
    resource = served.resource()
    status = resource["status"]
    assert status["endpoint"] == f"http://smoke-router.{NAMESPACE}.svc.cluster.local:8000"
    assert status["model"] == MODEL
    assert (status["prefill"]["ready"], status["decode"]["ready"]) == ("1/1", "1/1")
    assert condition(resource, "Degraded")["status"] == "False"
    assert "1/1" in served.kubectl.run("get", "dinf", "smoke", "-n", NAMESPACE)


def test_a_completion_makes_sense(served: Served) -> None:
    text = complete(served.url(), MODEL, "The capital of France is", 5)["choices"][0]["text"]
    assert "Paris" in text


def test_decode_takes_the_prompt_from_the_store(served: Served) -> None:
    before = cache_use(served.pod_url("decode"))
    answer = call(f"{served.url()}/v1/chat/completions", load.body(1, sentences=40))
    assert answer.status == 200, answer.body
    used = cache_use(served.pod_url("decode")) - before
    assert used.store >= 128, used
    assert used.store >= 0.95 * ((used.prompt - 1) // 128 * 128), used


def test_other_paths_reach_an_engine(served: Served) -> None:
    models = call(f"{served.url()}/v1/models").json()
    assert [model["id"] for model in models["data"]] == [MODEL]
    assert call(f"{served.url()}/version").status == 200
    wrong = call(f"{served.url()}/v1/chat/completions", {"model": "nobody", "messages": []})
    assert wrong.status in (400, 404)
    assert wrong.json()["error"]["message"]
