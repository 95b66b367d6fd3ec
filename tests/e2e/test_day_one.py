"""One model through its first day: prefill lost and found, roles scaled, edited, and removed, under requests."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from demo.client import cache_use, call, counters
from demo.cluster import NAMESPACE as OPERATOR_NAMESPACE
from demo.cluster import RELEASE, Cluster
from demo.kubectl import Manifest, wait_until
from e2e import load
from e2e.audit import mutations
from e2e.stack import MODEL, Served, example, serve

pytestmark = pytest.mark.long
NAMESPACE = "e2e-day-one"
OPERATOR = f"{RELEASE}-disaggregated-inference-operator"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    with serve(cluster, NAMESPACE, example("day-one")) as up:
        yield up


def chat(served: Served, number: int, **extra: Any) -> Manifest:
    answer = call(f"{served.url()}/v1/chat/completions", load.body(number, **extra))
    assert answer.status == 200, answer.body
    return answer.json()


def prefill_prompts(served: Served) -> float:
    """Prompt tokens that the present prefill pod has computed."""
    return counters(served.pod_url("prefill")).get("vllm:prompt_tokens", 0)


def test_status_tells_what_is_there(served: Served) -> None:
    resource = served.resource()
    status = resource["status"]
    assert status["endpoint"] == f"http://day-one-router.{NAMESPACE}.svc.cluster.local:8000"
    assert status["model"] == MODEL
    assert (status["prefill"]["ready"], status["decode"]["ready"]) == ("1/1", "1/1")
    served.wait_for("KVSharing", "True", timeout=120)
    table = served.kubectl.run("get", "dinf", "day-one", "-n", NAMESPACE)
    assert "True" in table
    assert "1/1" in table


def test_answers_and_metadata_endpoints(served: Served) -> None:
    models = call(f"{served.url()}/v1/models").json()
    assert [model["id"] for model in models["data"]] == [MODEL]
    before = cache_use(served.pod_url("decode"))
    answer = chat(served, 1, sentences=40)
    used = cache_use(served.pod_url("decode")) - before
    assert answer["choices"][0]["message"]["content"]
    assert used.store >= 128, used
    version = call(f"{served.url()}/version")
    assert version.status == 200, version.body
    wrong = call(f"{served.url()}/v1/chat/completions", {"model": "nobody", "messages": []})
    assert wrong.status in (400, 404)
    assert wrong.json()["error"]["message"]


def test_settled_means_quiet(served: Served, cluster: Cluster) -> None:
    """Nothing but the Lease is written over 60 s, and the CR's metadata and spec never are."""
    start = time.time()
    version = served.resource()["metadata"]["resourceVersion"]
    time.sleep(60)
    written = [
        entry for entry in mutations(cluster, OPERATOR_NAMESPACE, OPERATOR, since=start) if entry.resource != "leases"
    ]
    assert written == []
    assert served.resource()["metadata"]["resourceVersion"] == version


def test_a_label_on_the_resource_rolls_nothing(served: Served) -> None:
    before = served.pod_names("prefill") | served.pod_names("decode")
    served.kubectl.run("label", "dinf", "day-one", "-n", NAMESPACE, "team=search", "--overwrite")
    served.wait_for("Ready", "True")
    time.sleep(10)
    assert served.pod_names("prefill") | served.pod_names("decode") == before


def test_an_operator_restart_and_upgrade_roll_nothing(served: Served, cluster: Cluster) -> None:
    before = served.pod_names("prefill") | served.pod_names("decode")
    cluster.install_operator("--set-string", "podAnnotations.upgrade=1")
    time.sleep(15)
    served.wait_for("Ready", "True")
    assert served.pod_names("prefill") | served.pod_names("decode") == before


def test_lost_prefill_costs_no_request(served: Served) -> None:
    with load.running(served.url()) as seen:
        time.sleep(5)
        for pod in served.pods("prefill"):
            served.kubectl.run("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE, "--force", "--grace-period=0")
        served.wait_for("Degraded", "True", timeout=60)
        served.wait_for("Ready", "True")
        time.sleep(5)
    assert seen.failures() == []
    assert len(seen.answers) > 10
    wait_until(lambda: uses_prefill(served), timeout=60, what="the returned prefill is used again")


def uses_prefill(served: Served) -> bool:
    before = prefill_prompts(served)
    chat(served, time.monotonic_ns() % 10**9, sentences=30)
    return prefill_prompts(served) > before


def test_prefill_scaled_to_zero_is_a_wish(served: Served) -> None:
    with load.running(served.url()) as seen:
        time.sleep(3)
        served.edit(prefill={"replicas": 0})
        served.wait_for("KVSharing", "False", reason="PrefillScaledToZero", timeout=120)
        served.wait_for("Ready", "True", timeout=120)
        assert served.condition("Degraded")["status"] == "False"
        time.sleep(5)
    assert seen.failures() == []
    served.edit(prefill={"replicas": 1})
    served.wait_for("Ready", "True")
    wait_until(lambda: uses_prefill(served), timeout=60, what="the returned prefill is used again")


def test_roles_scale_apart_and_requests_in_flight_finish(served: Served) -> None:
    prefill, decode = served.pod_names("prefill"), served.pod_names("decode")
    with load.running(served.url(), max_tokens=64) as seen:
        served.edit(prefill={"replicas": 2})
        served.wait_for("Ready", "True")
        assert len(served.pods("prefill")) == 2
        assert served.pod_names("decode") == decode
        served.edit(prefill={"replicas": 1}, decode={"replicas": 2})
        served.wait_for("Ready", "True")
        assert len(served.pods("decode")) == 2
        assert len(served.pod_names("prefill") & prefill) <= 1
        served.edit(decode={"replicas": 1})
        wait_until(lambda: len(served.pods("decode")) == 1, timeout=120, what="decode is back to one pod")
        served.wait_for("Ready", "True")
        time.sleep(5)
    assert seen.failures() == []


def test_a_scaler_moves_its_role_and_no_accepted_request_fails(served: Served) -> None:
    """Decode 1 -> 2 -> 0 -> 1 by kubectl scale. Field case C80: what was accepted before 0 is answered."""
    before = served.pod_names("prefill") | served.pod_names("decode")
    served.edit(decode={"replicas": None, "scaling": {"minReplicas": 0}})
    served.wait_for("Ready", "True")
    assert served.pod_names("prefill") | served.pod_names("decode") == before, (
        "the scaler begins with the present count"
    )
    with load.running(served.url()) as seen:
        scale_decode(served, 2)
        wait_until(lambda: len(served.pods("decode")) == 2, timeout=60, what="a second decode pod")
        served.wait_for("Ready", "True")
    assert seen.failures() == []
    with ThreadPoolExecutor(4) as pool:
        accepted = [
            pool.submit(
                call, f"{served.url()}/v1/chat/completions", load.body(300 + number, max_tokens=200, ignore_eos=True)
            )
            for number in range(4)
        ]
        wait_until(lambda: served.requests_running("decode") == 4, timeout=60, what="four requests in decode")
        scale_decode(served, 0)
        assert [answer.result().status for answer in accepted] == [200] * 4
    served.wait_for("Ready", "True", reason="Suspended", timeout=180)
    scale_decode(served, 1)
    served.wait_for("Available", "True")
    served.edit(decode={"replicas": 1, "scaling": None})
    served.wait_for("Ready", "True")
    assert served.kubectl.get("dinfs", "day-one-decode", NAMESPACE) is None
    assert served.pod_names("prefill") == {name for name in before if "-prefill-" in name}


def scale_decode(served: Served, count: int) -> None:
    served.kubectl.run("scale", "dinfs/day-one-decode", "-n", NAMESPACE, f"--replicas={count}")


def test_a_deployment_scaled_by_hand_is_put_back_and_the_event_says_where_to_scale(served: Served) -> None:
    served.kubectl.run("scale", "deployment/day-one-prefill", "-n", NAMESPACE, "--replicas=2")

    def told() -> bool:
        events = served.kubectl.items("events", NAMESPACE)
        return any(e["reason"] == "ScaledElsewhere" and "spec.prefill.replicas" in e["message"] for e in events)

    wait_until(told, timeout=60, what="an event ScaledElsewhere")
    served.wait_for("Ready", "True")
    wait_until(lambda: len(served.pods("prefill")) == 1, timeout=120, what="one prefill pod")


def test_a_store_setting_rolls_the_engines(served: Served) -> None:
    prefill, decode = served.pod_names("prefill"), served.pod_names("decode")
    with load.running(served.url()) as seen:
        served.edit(kvStore={"segmentSize": "384Mi"})
        served.wait_for("Ready", "True")
        gone = wait_until(
            lambda: not ((served.pod_names("prefill") & prefill) | (served.pod_names("decode") & decode)),
            timeout=300,
            what="the old engines are gone",
        )
        assert gone
    assert seen.failures() == []


def test_decode_scaled_to_zero_answers_503(served: Served) -> None:
    """Field cases C80 and C85."""
    served.edit(decode={"replicas": 0})
    served.wait_for("Ready", "True", reason="Suspended", timeout=180)

    def refused() -> bool:
        answer = call(f"{served.url()}/v1/chat/completions", load.body(7))
        return answer.status == 503 and "Retry-After" in answer.headers and "error" in answer.json()

    wait_until(refused, timeout=120, what="requests are answered 503 with Retry-After")
    assert [model["id"] for model in call(f"{served.url()}/v1/models").json()["data"]] == [MODEL]
    served.edit(decode={"replicas": 1})
    served.wait_for("Available", "True")
    wait_until(
        lambda: call(f"{served.url()}/v1/chat/completions", load.body(8)).status == 200, timeout=60, what="answers"
    )


def test_uninstalling_the_operator_leaves_the_data_path(served: Served, cluster: Cluster) -> None:
    before = served.pod_names("prefill") | served.pod_names("decode")
    cluster.uninstall_operator()
    try:
        assert served.pod_names("prefill") | served.pod_names("decode") == before
        chat(served, 9)
        assert served.resource()["spec"]["model"]["name"] == MODEL
    finally:
        cluster.install_operator()
    served.wait_for("Ready", "True")
    assert served.pod_names("prefill") | served.pod_names("decode") == before


def test_deleting_without_an_operator_leaves_nothing(served: Served, cluster: Cluster) -> None:
    cluster.kubectl.run("scale", "deployment", OPERATOR, "-n", OPERATOR_NAMESPACE, "--replicas=0")
    try:
        served.delete()
        assert served.leftovers() == []
    finally:
        cluster.kubectl.run("scale", "deployment", OPERATOR, "-n", OPERATOR_NAMESPACE, "--replicas=1")


def test_many_streams_at_once(cluster: Cluster) -> None:
    """Placed last in the file on purpose: it brings its own resource, with the HTTP metadata service and API keys."""
    namespace = "e2e-http-metadata"
    resource = example("keyed")
    resource["spec"]["kvStore"]["metadata"] = {"type": "HTTP"}
    resource["spec"]["apiKeySecretRef"] = {"name": "keys", "key": "keys"}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": namespace}}
    cluster.kubectl.apply({**secret, "stringData": {"keys": "first-key\nsecond-key\n"}})
    with serve(cluster, namespace, resource) as keyed:
        url = f"{keyed.url()}/v1/chat/completions"
        assert call(url, load.body(1)).status == 401
        keys = {"Authorization": "Bearer second-key"}
        before = cache_use(keyed.pod_url("decode"))
        with ThreadPoolExecutor(16) as pool:
            bodies = [load.body(100 + number, stream=True, sentences=30) for number in range(16)]
            streams = list(pool.map(lambda body: call(url, body, headers=keys), bodies))
        assert {answer.status for answer in streams} == {200}
        assert all(answer.body.rstrip().endswith("data: [DONE]") for answer in streams)
        assert (cache_use(keyed.pod_url("decode")) - before).store > 0
