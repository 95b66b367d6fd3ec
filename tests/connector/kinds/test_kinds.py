"""KV of each kind of attention goes through the store and changes no token; and it would be seen if it did."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from connector.kinds.conftest import Pair, Plain
from connector.kinds.programs import ANSWER_TOKENS, ASK, NO_DAMAGE, Answers, Case, Right

pytestmark = pytest.mark.engines

# On CPUs, vLLM computes latent KV (MLA) in blocks of 16 alone. For others it refuses 16, see `engine.py`.
CASES = [
    Case("gqa", 32),
    Case("hybrid", 32),
    Case("mla", 16),
    Case("mha", 32),
    Case("gqa", 16),
    Case("gqa", 128),
    Case("gqa", 32, ranks=2),
    Case("mla", 16, ranks=2),
]
# Layers and groups of each kind.
DEPTHS = {"gqa": (3, 1), "mha": (3, 1), "mla": (3, 1), "hybrid": (6, 3)}


@dataclass
class Run:
    """A case with its engines, and what an engine without a connector answers."""

    case: Case
    right: Right
    engines: Pair
    params: list[dict[str, Any] | None]
    """What prefill promises."""

    @property
    def plain(self) -> list[list[int]]:
        """The right answers to the case's prompts."""
        return self.right.prompts

    def decode(self, damage: Mapping[str, object] = NO_DAMAGE) -> Answers:
        """Answers to all prompts, none of which decode's own cache knows."""
        return self.engines.decode.ask(self.case.prompts(), self.params, damage)


@pytest.fixture(scope="module", params=CASES, ids=str)
def run(request: pytest.FixtureRequest, pair: Pair, plain: Plain) -> Run:
    case: Case = request.param
    right, prompts = plain(case), case.prompts()
    for engine in (pair.prefill, pair.decode):
        engine.open(case)
        engine.wait_shared(case)
    params = pair.prefill.ask(prompts, [ASK] * len(prompts), max_tokens=1).params
    return Run(case, right, pair, params)


def test_answers_depend_on_the_prompt(run: Run) -> None:
    """Or else the next tests show nothing."""
    assert all(len(set(ids)) >= ANSWER_TOKENS / 3 for ids in run.plain), run.plain
    assert len({tuple(ids) for ids in run.plain}) == len(run.plain)


def test_what_is_loaded_changes_no_token(run: Run) -> None:
    for time in ("cold", "warm"):
        found = run.decode()
        loadable = run.case.loadable(run.case.prompts())
        print(f"{run.case} {time}: {found.loaded} of {loadable} tokens loaded, {found.seconds} s")
        assert found.ids == run.plain
        assert found.loaded >= 0.95 * loadable


def test_conversations_go_on_from_the_store(run: Run) -> None:
    """Neither engine has anything of a turn in its own cache when the next one comes."""
    stored = 0  # Whole blocks of the turn before.
    for number, turn in enumerate(run.right.turns):
        loadable = run.case.loadable(turn.prompts)
        promised = run.engines.prefill.ask(turn.prompts, [ASK] * len(turn.prompts), max_tokens=1)
        found = run.engines.decode.ask(turn.prompts, promised.params)
        print(
            f"{run.case} turn {number + 1}: decode loaded {found.loaded} of {loadable} tokens, "
            f"prefill {promised.loaded} of {stored} that it had stored, unpromised"
        )
        assert found.ids == turn.ids
        assert found.loaded > 0.9 * loadable
        stored = sum(len(prompt) // run.case.block * run.case.block for prompt in turn.prompts)


def test_a_prefix_that_prompts_share_is_loaded_for_each(run: Run) -> None:
    """Whole blocks of the first prompt are the prefix alone. So what is promised for it holds for the others."""
    prompts, engine = run.case.alike(), run.engines.decode
    prefix = run.case.loadable(prompts[:1])
    params = run.engines.prefill.ask(prompts[:1], [ASK], max_tokens=1).params
    for prompt, right in zip(prompts, run.right.alike, strict=True):
        found = engine.ask([prompt], params)
        print(f"{run.case}, {len(prompt)} tokens: {found.loaded} loaded, {prefix} of them of all prompts")
        assert found.ids == [right]
        assert found.loaded > 0.9 * prefix


def test_any_damage_changes_tokens(run: Run) -> None:
    """Last: what is damaged must not find its way into the store."""
    for damage in _damages(run.case):
        found = run.decode(damage)
        changed = [ids != right for ids, right in zip(found.ids, run.plain, strict=True)]
        print(f"{run.case} {damage}: {sum(changed)} of {len(changed)} answers change, {found.loaded} tokens loaded")
        assert any(changed), damage
    assert run.decode().ids == run.plain


def _damages(case: Case) -> list[dict[str, object]]:
    layers, groups = DEPTHS[case.kind]
    longest = max(len(prompt) for prompt in case.prompts())
    # Of each group with a window, two blocks are seen.
    blocks = (longest - 1) // case.block + 2 * (groups - 1)
    return [
        *({how: "block", "at": at} for how in ("zero", "swap") for at in range(blocks)),
        *({"swap": "halves", "at": at} for at in range(blocks)),
        *({"zero": "layer", "at": at} for at in range(layers)),
        *({"swap": "layer", "at": at} for at in range(layers - 1)),
        *({"zero": "group", "at": at} for at in range(groups)),
        *({"swap": "group", "at": at} for at in range(groups - 1)),
    ]
