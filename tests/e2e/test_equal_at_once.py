"""The promise "never a wrong token" for requests that come at once, apart from what batches do to bfloat16.

Engines that compute one request at a time round as they do for a lone one, whatever else waits. So with
`--max-num-seqs 1` on the plain server, prefill and decode, all that can differ came through the store.
"""

from collections.abc import Iterator
from dataclasses import asdict

import pytest
from demo.cluster import Cluster
from demo.kubectl import Manifest
from e2e.answers import differences, generate, summary_of
from e2e.prompts import token_prompts, whole_block_tokens
from e2e.stack import BLOCK, MODEL, Served, example, plain_server, serve
from e2e.test_equal_tokens import DEV_MODE, STORE, Oracle, ask, record, reset_local_cache

pytestmark = pytest.mark.long
NAMESPACE = "e2e-at-once"
DTYPE = "bfloat16"
AT_ONCE = 8


def one_at_a_time(name: str) -> Manifest:
    """A resource whose engines compute one request at a time."""
    resource = example(name, dtype=DTYPE, decode_env=DEV_MODE, store=STORE)
    resource["spec"]["engine"]["args"] += ["--max-num-seqs", "1"]
    return resource


@pytest.fixture(scope="module")
def oracle(cluster: Cluster, full_counts: bool) -> Oracle:
    with plain_server(cluster, NAMESPACE, one_at_a_time("plain")) as url:
        prompts = token_prompts(url, MODEL, count=50 if full_counts else 6, seed=16_000)
        singly = generate(url, prompts, concurrency=1, asked=2)
        return Oracle(prompts, singly, generate(url, prompts, AT_ONCE, asked=2))


@pytest.fixture(scope="module")
def split(cluster: Cluster, oracle: Oracle) -> Iterator[Served]:
    with serve(cluster, NAMESPACE, one_at_a_time("at-once")) as served:
        yield served


def test_company_moves_no_answer_of_a_plain_server_that_computes_one_at_a_time(oracle: Oracle) -> None:
    """Else the tests below would hold the split model against chance."""
    assert differences(oracle.generations, oracle.batched) == []


@pytest.mark.parametrize("phase", ["cold", "warm", "reset"])
def test_eight_at_once_are_equal_where_engines_compute_one_at_a_time(
    split: Served, oracle: Oracle, full_counts: bool, phase: str
) -> None:
    if phase == "reset":
        reset_local_cache(split.pod_url("decode"))
    answers, use = ask(split, oracle.prompts, AT_ONCE)
    allowed = whole_block_tokens(oracle.prompts, BLOCK)
    found = differences(oracle.generations, answers)
    if full_counts:
        uses = {**asdict(use), "whole_block_tokens": allowed}
        figures = {"prompts": len(answers), "differ": summary_of(found), **uses}
        record(f"{phase}, {AT_ONCE} at a time, engines compute one at a time", DTYPE, figures)
    assert found == []
    reused = use.store + (use.local if phase == "warm" else 0)
    assert reused >= 0.95 * allowed, f"{use} of {allowed} tokens in whole blocks"
