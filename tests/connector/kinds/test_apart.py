"""Engines whose KV cannot be shared: they answer as if alone, and the log says why."""

import pytest

from connector.kinds.conftest import Pair, Plain
from connector.kinds.programs import ASK, Case

pytestmark = pytest.mark.engines


def test_recurrent_layers_are_served_alone(pair: Pair, plain: Plain) -> None:
    """States of Mamba layers are not shared, and so nothing is."""
    case = Case("recurrent", 16)
    right, prompts = plain(case).prompts, case.prompts()
    pair.prefill.open(case)
    first = pair.prefill.ask(prompts, [ASK] * len(prompts))
    second = pair.prefill.ask(prompts, first.params)
    assert [first.ids, second.ids] == [right, right]
    assert (first.loaded, second.loaded) == (0, 0)
    assert "MambaSpec, whose blocks are not shared" in pair.prefill.log.read_text()


def test_ranks_that_differ_share_nothing(pair: Pair, plain: Plain) -> None:
    """Prefill has two ranks, decode one: neither's blocks are the other's."""
    case = Case("gqa", 32)
    right, prompts = plain(case).prompts, case.prompts()
    pair.prefill.open(Case("gqa", 32, ranks=2))
    pair.decode.open(case)
    for engine in (pair.prefill, pair.decode):
        engine.wait_shared(case)
    params = pair.prefill.ask(prompts, [ASK] * len(prompts), max_tokens=1).params
    assert all(params), "prefill has stored what it computed"
    found = pair.decode.ask(prompts, params)
    assert (found.ids, found.loaded) == (right, 0)
    assert "Prefill promised KV that this engine would not recognise" in pair.decode.log.read_text()
