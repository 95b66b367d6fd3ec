"""Ask the served model something, and tell where the answer's prompt tokens came from."""

import time

from demo.client import Json, cache_use, call
from demo.cluster import Cluster

STORY = (
    "The harbour of Lindholm wakes before the sun. Fishing boats leave in a long row, and the baker opens the first "
    "window of the street. By eight the ferry brings people from the islands: teachers, a carpenter with his tools, "
    "and children who count the gulls. At noon the bell of the small church is heard as far as the lighthouse. The "
    "keeper, Ingrid, writes the weather into a blue book, as her mother did. In the afternoon the boats come back, "
    "and the nets are hung to dry between the pines. The market sells herring, bread, apples and wool until five. "
    "Then the ferry takes everybody home, the lamps are lit along the quay, and the town is quiet again. "
)


def ask_and_report(cluster: Cluster, namespace: str, name: str) -> None:
    """Send a completion and a chat request through the router and print what a newcomer wants to see."""
    resource = cluster.kubectl.get("dinf", name, namespace) or {}
    status = resource["status"]
    selector = f"inference.disagg.io/name={name},inference.disagg.io/role=decode"
    decode = cluster.kubectl.items("pods", namespace, selector)[0]["metadata"]["name"]
    with (
        cluster.kubectl.port_forward(namespace, f"service/{name}-router", 8000) as router,
        cluster.kubectl.port_forward(namespace, f"pod/{decode}", 8000) as engine,
    ):
        capital = "The capital of France is"
        print(f"\n  completion  {capital} ...{_completion(router, status['model'], capital)}")
        before = cache_use(engine)
        # The time makes the prompt new, so that a second demo shows the store again and not decode's own cache.
        question = f"Notes of {time.time_ns()}. {STORY}Who writes the weather into a blue book?"
        print(f"  chat        Who writes the weather into a blue book? -> {_chat(router, status['model'], question)}")
        used = cache_use(engine) - before
    print(f"  store       decode took {used.store:.0f} of the chat's {used.prompt:.0f} prompt tokens from the store")
    print(f"  endpoint    {status['endpoint']} (inside the cluster)")
    _print_next(cluster, namespace, name)


def _completion(url: str, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    return str(_checked(f"{url}/v1/completions", body)["choices"][0]["text"]).replace("\n", " ")


def _chat(url: str, model: str, question: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 40, "temperature": 0}
    return str(_checked(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"]).replace("\n", " ")


def _checked(url: str, body: Json) -> Json:
    answer = call(url, body)
    if answer.status != 200:
        raise RuntimeError(f"{url} answered {answer.status}: {answer.body[:500]}")
    return answer.json()


def _print_next(cluster: Cluster, namespace: str, name: str) -> None:
    kubectl = " ".join(cluster.kubectl.command())
    print(f"""
What to try next:
  {kubectl} get dinf -A
  {kubectl} describe dinf {name} -n {namespace}
  {kubectl} patch dinf {name} -n {namespace} --type=merge -p '{{"spec":{{"prefill":{{"replicas":2}}}}}}'
  {kubectl} port-forward -n {namespace} service/{name}-router 8000
  curl http://127.0.0.1:8000/v1/models
  make demo-down
""")
