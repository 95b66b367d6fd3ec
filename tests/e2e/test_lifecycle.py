"""Engines die hard, roles go to zero and come back at once, several routers look on. All that is Ready has to work.

At most five engines run at a time: two leaving, two coming, and one of the other role. In float32, so that an answer is
the same whether its KV was computed or came from the store.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from demo.client import Answer, cache_use, call, counters
from demo.cluster import Cluster
from demo.kubectl import Manifest, wait_until
from disagg_operator.api.names import PORT_MASTER_ADMIN
from e2e import load
from e2e.stack import MODEL, Served, example, is_ready, serve, url_of
from e2e.violence import kill_hard, wait_gone, wait_replaced

pytestmark = pytest.mark.long
NAMESPACE = "e2e-lifecycle"
# What the master gives a client that went without a word, and what the operator needs to see it; with room.
FORGOTTEN_SECONDS = 120
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Served]:
    with serve(cluster, NAMESPACE, example("lifecycle", dtype="float32")) as up:
        yield up


def ask(url: str, numbers: Sequence[int], at_once: int = 2, **extra: Any) -> list[Answer]:
    """Answers to prompts by number, so many at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda number: call(url + CHAT, load.body(number, **extra)), numbers))


def failures(answers: Sequence[Answer]) -> list[str]:
    return [f"HTTP {answer.status}: {answer.body[:200]}" for answer in answers if answer.status != 200]


def fresh() -> int:
    """The number of a prompt that nobody sent before."""
    return 10**6 + time.monotonic_ns() % 10**9


def shares(served: Served) -> bool:
    """Whether a new prompt's KV goes from prefill to decode."""
    decodes = [url_of(pod) for pod in served.pods("decode") if is_ready(pod)]
    before = [cache_use(url).store for url in decodes]
    assert failures(ask(served.url(), [fresh()], sentences=30)) == []
    return sum(cache_use(url).store for url in decodes) > sum(before)


def segments(served: Served) -> list[str]:
    """Addresses of the segments that the master knows."""
    (master,) = served.pods("master")
    answer = call(f"http://{master['status']['podIP']}:{PORT_MASTER_ADMIN}/get_all_segments")
    assert answer.status == 200, answer.body
    return sorted(line.strip() for line in answer.body.splitlines() if line.strip())


def wait_segments(served: Served) -> list[str]:
    """Wait until the master knows the segments of the ready engines, each once, and no others. Returns them."""

    def are_right() -> list[str] | None:
        engines = [pod for role in ("prefill", "decode") for pod in served.pods(role) if is_ready(pod)]
        wanted = sorted(pod["status"]["podIP"] for pod in engines)
        known = segments(served)
        return known if sorted(name.rpartition(":")[0] for name in known) == wanted else None

    return wait_until(are_right, timeout=FORGOTTEN_SECONDS, what="the master knows the live engines alone")


@pytest.fixture
def of_each(served: Served, full_counts: bool) -> Iterator[int]:
    """How many pods of each role there are: with full counts two, for one test."""
    count = 2 if full_counts else 1
    resize(served, prefill=count, decode=count)
    yield count
    resize(served, prefill=1, decode=1)


def resize(served: Served, **counts: int) -> None:
    """Give roles so many pods, and wait until all others are gone."""
    served.edit(**{role: {"replicas": count} for role, count in counts.items()})
    served.wait_for("Ready", "True")
    for role, count in counts.items():
        wait_gone(served, role, count)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_engines_that_died_hard_poison_no_peer(served: Served, full_counts: bool, of_each: int, role: str) -> None:
    """Field case C25: what comes back on other addresses is met as new by the peers."""
    assert failures(ask(served.url(), range(100, 104))) == []
    other = "prefill" if role == "decode" else "decode"
    bystanders = served.pod_names(other)
    for turn in range(2 if full_counts else 1):
        wait_replaced(served, role, kill_hard(served, role), of_each)
        first = 1000 + 100 * turn
        assert failures(ask(served.url(), range(first, first + (50 if full_counts else 10)))) == []
        wait_until(lambda: shares(served), timeout=120, what="KV goes from prefill to decode again")
    assert served.pod_names(other) == bystanders


def test_a_prompt_whose_writer_died_is_answered_as_before_and_stored_again(served: Served) -> None:
    """Field case C23: what the store had of it went with prefill, and keys that point to nothing delay nobody."""
    wait_until(lambda: shares(served), timeout=120, what="KV goes from prefill to decode")
    prompt = [fresh()]
    before = ask(served.url(), prompt, sentences=30)
    wait_replaced(served, "prefill", kill_hard(served, "prefill"))
    again = [answer for _ in range(5) for answer in ask(served.url(), prompt, sentences=30)]
    assert failures([*before, *again]) == []
    assert set(map(content, again)) == set(map(content, before))
    (prefill,) = served.pods("prefill")
    stored = "vllm:mooncake_saved_blocks"
    wait_until(lambda: counters(url_of(prefill)).get(stored, 0) > 0, timeout=60, what="the new prefill stores it")


def test_the_master_forgets_engines_that_died(served: Served, full_counts: bool) -> None:
    """Field case C37: however many die, what is registered is what lives."""
    (prefill,) = served.pods("prefill")
    own = [name for name in wait_segments(served) if name.startswith(prefill["status"]["podIP"] + ":")]
    assert len(own) == 1
    for _ in range(20 if full_counts else 5):
        wait_replaced(served, "decode", kill_hard(served, "decode"))
        assert set(own) <= set(wait_segments(served)), "the live engine's segment is as it was"
    served.wait_for("KVSharing", "True", timeout=FORGOTTEN_SECONDS)
    wait_until(lambda: shares(served), timeout=120, what="KV goes from prefill to decode again")


def restarts(pods: Sequence[Manifest]) -> dict[str, int]:
    """By pod, how often its containers were started again."""
    return {
        pod["metadata"]["name"]: sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
        for pod in pods
    }


def is_clean(answer: Answer) -> bool:
    """An answer, or a refusal that a client can act on."""
    refused = answer.status == 503 and "Retry-After" in answer.headers and "error" in answer.json()
    return answer.status == 200 or refused


def test_decode_to_zero_and_back_a_second_later(served: Served, full_counts: bool) -> None:
    """Field case C80: what was taken is answered, what comes between is answered or refused cleanly, no pod is left."""
    served.edit(decode={"replicas": 2})
    served.wait_for("Ready", "True")
    routers = restarts(served.pods("router"))
    for turn in range(10 if full_counts else 2):
        with ThreadPoolExecutor(4) as pool:
            taken = [submit(pool, served, 2000 + 10 * turn + number) for number in range(3)]
            wait_until(
                lambda: served.requests_running("decode") == 3, timeout=60, what="three requests in decode", every=0.2
            )
            served.edit(decode={"replicas": 0})
            time.sleep(1)
            served.edit(decode={"replicas": 2})
            between = submit(pool, served, 2009 + 10 * turn)
            assert failures([one.result() for one in taken]) == []
            assert is_clean(between.result()), between.result().body
        wait_gone(served, "decode", 2)
        served.wait_for("Ready", "True")
        assert failures(ask(served.url(), range(3000 + 10 * turn, 3004 + 10 * turn))) == []
    assert restarts(served.pods("router")) == routers
    resize(served, decode=1)
    wait_segments(served)


def submit(pool: ThreadPoolExecutor, served: Served, number: int) -> Future[Answer]:
    """A request that keeps decode busy for some seconds."""
    return pool.submit(call, served.url() + CHAT, load.body(number, max_tokens=150, ignore_eos=True))


def test_prefill_to_zero_and_back_a_second_later(served: Served, full_counts: bool) -> None:
    """Field case C80: decode computes prompts itself meanwhile, and nobody notices."""
    for _ in range(5 if full_counts else 1):
        with load.running(served.url()) as seen:
            time.sleep(3)
            served.edit(prefill={"replicas": 0})
            time.sleep(1)
            served.edit(prefill={"replicas": 1})
            wait_gone(served, "prefill", 1)
            served.wait_for("Ready", "True")
        assert seen.failures() == []
        assert seen.answers
    wait_until(lambda: shares(served), timeout=120, what="KV goes from prefill to decode again")


def test_two_routers_agree_on_what_comes_and_goes(served: Served, full_counts: bool) -> None:
    """Field case C88: a new pod gets traffic from both, and all decodes gone for 20 s leave neither confused."""
    served.edit(router={"replicas": 2}, decode={"replicas": 2})
    served.wait_for("Ready", "True")
    routers = served.pods("router")
    assert len(routers) == 2
    before = restarts(routers)
    urls = [url_of(pod) for pod in routers]
    for number, url in enumerate(urls):
        wait_until(lambda url=url: reaches_all(served, url), timeout=60, what=f"router {number} uses both decodes")  # type: ignore[misc]
    served.edit(decode={"replicas": 0})
    served.wait_for("Ready", "True", reason="Suspended", timeout=180)
    time.sleep(20)
    for url in urls:
        (refused,) = ask(url, [fresh()])
        assert refused.status == 503, refused.body
        assert is_clean(refused)
    served.edit(decode={"replicas": 2})
    served.wait_for("Ready", "True", reason="Ready")
    each = 500 if full_counts else 15
    for number, url in enumerate(urls):
        first = 4000 + 1000 * number
        wait_until(lambda url=url: reaches_all(served, url), timeout=60, what=f"router {number} uses both decodes")  # type: ignore[misc]
        assert failures(ask(url, range(first, first + each))) == []
    assert restarts(served.pods("router")) == before, "none was started again"
    resize(served, router=1, decode=1)


def reaches_all(served: Served, router: str) -> bool:
    """Whether requests through one router reach each decode pod. None of them may fail."""
    pods = [url_of(pod) for pod in served.pods("decode")]
    before = [counters(pod).get("vllm:prompt_tokens", 0) for pod in pods]
    first = fresh()
    assert failures(ask(router, range(first, first + 6))) == []
    return all(counters(pod).get("vllm:prompt_tokens", 0) > known for pod, known in zip(pods, before, strict=True))


def test_a_segment_leaves_with_its_engine_and_its_keys_are_missed_at_once(served: Served, full_counts: bool) -> None:
    """Field case C91: of several prefill pods one stays. What the others held is computed again, and told right."""
    served.edit(prefill={"replicas": 3 if full_counts else 2})
    served.wait_for("Ready", "True")
    wait_segments(served)
    prompts = range(6000, 6000 + (20 if full_counts else 8))
    first = ask(served.url(), prompts, sentences=30)
    assert failures(first) == []
    served.edit(prefill={"replicas": 1})
    wait_gone(served, "prefill", 1)
    wait_segments(served)
    (decode,) = served.pods("decode")
    before = counters(url_of(decode))
    again = ask(served.url(), prompts, at_once=len(prompts), sentences=30)
    assert failures(again) == []
    assert list(map(content, again)) == list(map(content, first))
    used = {name: value - before.get(name, 0) for name, value in counters(url_of(decode)).items()}
    assert used.get("vllm:mooncake_breaker_opened", 0) == 0, "a miss is no outage"
    assert used["vllm:mooncake_lookups"] <= 2 * len(prompts), "nobody asks again and again"
    served.wait_for("KVSharing", "True", timeout=120)


def content(answer: Answer) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def test_few_ports_are_enough(cluster: Cluster, full_counts: bool) -> None:
    """Field case C52: with 500 local ports a burst of transfers may miss, and neither fails nor hangs.

    Placed last in the file on purpose: it brings its own resource.
    """
    resource = example("narrow", dtype="float32")
    few = {"sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "40000 40499"}]}
    for role in ("prefill", "decode"):
        resource["spec"][role]["template"] = {"spec": {"securityContext": few}}
    with serve(cluster, "e2e-few-ports", resource) as narrow:
        numbers = range(7000, 7000 + (400 if full_counts else 30))
        assert failures(ask(narrow.url(), numbers, at_once=8, sentences=30)) == []
        wait_until(lambda: shares(narrow), timeout=120, what="KV goes from prefill to decode")
        assert {model["id"] for model in call(f"{narrow.url()}/v1/models").json()["data"]} == {MODEL}
