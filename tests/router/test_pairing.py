"""Prefill and decode are paired within one KV revision: what a rollout needs, and where nobody can tell."""

import asyncio
from pathlib import Path

from router.client import ask, new_client, prompt_of
from router.programs import eventually
from router.stack import Engine, Router, Stack


def ask_many(router: Router, count: int = 24) -> None:
    """So many prompts, a few at a time. Each must be answered right."""

    async def run() -> list[str]:
        gate = asyncio.Semaphore(4)

        async def one(number: int) -> str:
            async with gate:
                return await ask(client, router.url, prompt_of(50, streamed=number % 2 == 0, number=number))

        async with new_client() as client:
            return await asyncio.gather(*(one(number) for number in range(count)))

    assert set(asyncio.run(run())) == {""}


def pairs(engines: list[Engine]) -> set[tuple[str, str]]:
    """Revisions of the prefill engine and the decode engine of each prompt; an empty word where prefill had no part."""
    by_name = {engine.name: engine.revision for engine in engines}
    found = set()
    for engine in engines:
        if engine.role == "decode":
            for request in (each for each in engine.seen() if each["method"] == "POST"):
                body = str(request["body"]).replace(" ", "")
                origin = next((name for name in by_name if f'"engine":"{name}"' in body), "")
                found.add((by_name.get(origin, ""), engine.revision))
    return found


def knows(router: Router, count: int) -> bool:
    """Whether the front knows the KV revisions of so many engines."""
    return router.metric("disagg_router_engines_of_known_revision") == count


def test_old_and_new_are_not_mixed_in_a_rollout(small: Stack) -> None:
    for revision in ("old", "new"):
        for role in ("prefill", "decode", "decode"):
            small.add_engine(role, revision=revision)
    router = small.add_router(*small.pairing_flags())
    eventually(lambda: knows(router, 6), "all revisions are known")
    ask_many(router)
    assert pairs(small.engines) == {("old", "old"), ("new", "new")}


def test_decode_of_a_revision_without_prefill_answers_alone(small: Stack) -> None:
    small.add_engine("prefill", revision="new")
    for revision in ("old", "new"):
        small.add_engine("decode", revision=revision)
    router = small.add_router(*small.pairing_flags())
    eventually(lambda: knows(router, 3), "all revisions are known")
    ask_many(router)
    assert pairs(small.engines) == {("", "old"), ("new", "new")}
    late = small.add_engine("prefill", revision="old")
    small.settle(router)
    eventually(lambda: knows(router, 4), "the new one's revision is known")
    ask_many(router)
    assert late.seen(), "an engine that comes later is paired too"
    assert pairs(small.engines) == {("", "old"), ("old", "old"), ("new", "new")}


def test_where_nobody_can_tell_all_are_paired(small: Stack, tmp_path: Path) -> None:
    """No right to list pods, or no API server: requests go on, through prefill."""
    (tmp_path / "token").write_text("of nobody")
    flags = small.pairing_flags()
    (tmp_path / "ca.crt").write_bytes((small.api.service_account(small.namespace) / "ca.crt").read_bytes())
    small.add_engine("prefill", revision="old")
    small.add_engine("decode", revision="new")
    router = small.add_router(flags[0], f"--service-account-dir={tmp_path}")
    eventually(lambda: "cannot be listed" in router.front.log.read_text(), "it says so")
    ask_many(router, 8)
    assert pairs(small.engines) == {("old", "new")}
