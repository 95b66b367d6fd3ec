"""A small client of the served model: OpenAI's HTTP interface and vLLM's counters. Blocking, for scripts and tests."""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: status, headers and body."""

    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Json:
        """The body as JSON."""
        return dict(json.loads(self.body))


def call(
    url: str, body: Json | None = None, *, headers: dict[str, str] | None = None, timeout: float = 300, method: str = ""
) -> Answer:
    """GET `url`, or POST a JSON body to it. HTTP errors are answers, not exceptions."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(  # noqa: S310 - the URL is built by the caller from a cluster address
        url, data=data, headers={"Content-Type": "application/json", **(headers or {})}, method=method or None
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
            return Answer(response.status, dict(response.headers), response.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, dict(error.headers), error.read().decode())


def complete(base: str, model: str, prompt: str | Sequence[int], max_tokens: int, **extra: Any) -> Json:
    """Greedy completion. Raises RuntimeError with the body when the answer is not 200."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **extra}
    answer = call(f"{base}/v1/completions", body)
    if answer.status != 200:
        raise RuntimeError(f"HTTP {answer.status}: {answer.body[:500]}")
    return answer.json()


def counters(base: str, prefix: str = "vllm:") -> dict[str, float]:
    """Prometheus counters of one engine, summed over labels, by name without `_total`."""
    sums: dict[str, float] = {}
    for line in call(f"{base}/metrics").body.splitlines():
        if not line.startswith(prefix):
            continue
        series, _, value = line.rpartition(" ")
        name = series.split("{", 1)[0].removesuffix("_total")
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


@dataclass(frozen=True)
class CacheUse:
    """Prompt tokens by where they came from, as one engine counts them."""

    prompt: float
    local: float
    store: float

    def __sub__(self, earlier: "CacheUse") -> "CacheUse":
        """What happened between two readings."""
        return CacheUse(self.prompt - earlier.prompt, self.local - earlier.local, self.store - earlier.store)


def cache_use(base: str) -> CacheUse:
    """Read one engine's counters of prompt tokens, local cache hits and store hits."""
    seen = counters(base)
    return CacheUse(
        prompt=seen.get("vllm:prompt_tokens", 0),
        local=seen.get("vllm:prefix_cache_hits", 0),
        store=seen.get("vllm:external_prefix_cache_hits", 0),
    )
