"""Saving and loading KV blocks, ours beside vLLM's own store connector and bare transfers (see README.md).

`python benchmarks/transfer.py`. All blocks lie in the memory of a process beside, whose pages were written before, so
that each byte goes through TCP. The caches are those of SmolLM2-135M: a block of 16 tokens has 12 KiB in each of 30
layers, one of 128 has 96 KiB. In each round every arm runs once, in an order drawn anew; ratios are taken within
rounds, and rounds in which an arm fails are taken again.
"""

import argparse
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from connector.v0.programs import CallFailed, Site, Worker, site
from figures import RESULTS, describe_run, spread_in_ms, spread_of_ratios

BLOCKS: Final = (16, 128)
ARMS: Final = ("ours", "theirs", "raw")
ACTS: Final = ("save", "load")
SEGMENT: Final = 1 << 30
_SCRIPT: Final = Path(__file__).with_name("transfer_worker.py")
_RAW: Final = Path(__file__).with_name("transfer_raw.py")
# Theirs moves each layer of each block by itself. Mooncake refuses what exceeds its default, and the whole load fails.
_QUEUE: Final = {"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "16384"}
_WARM_UP: Final = 4
_MOST_FAILURES: Final = 10


def main() -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens moved at once, a multiple of 128")
    parser.add_argument("--output", type=Path, default=RESULTS / "transfer.json")
    arguments = parser.parse_args()
    run = describe_run()
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as made:
        owner = made.raw(SEGMENT, script=_RAW)
        owner("touch", SEGMENT)
        measured = {str(block): measure(made, owner, block, arguments) for block in BLOCKS}
    result = {
        **run,
        "tokens": arguments.tokens,
        "model": "SmolLM2-135M: 30 layers, 3 heads of 64, bfloat16",
        "note": "loads without the lookup before them; ours is measured from one side of the engine to the other",
        "block_size": measured,
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(measured, indent=2))


def measure(made: Site, owner: Worker, block: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of all arms with blocks of one size."""
    arms = start_arms(made, block, arguments.tokens // block)
    times: dict[str, dict[str, list[float]]] = {name: {arm: [] for arm in ARMS} for name in ACTS}
    draw, seeds, failures = random.Random(1), itertools.count(1000 * block), Counter[str]()
    for number in range(-_WARM_UP, arguments.rounds):
        while (taken := take_round(arms, draw, next(seeds), failures)) is None:
            owner("clear")
        for name, arm in itertools.product(ACTS, ARMS):
            if number >= 0:
                times[name][arm].append(taken[name][arm])
        owner("clear")
    for one in arms.values():
        one.stop()
    told = {name: summarise(found) for name, found in times.items()}
    return {**told, "failed": dict(failures)} if failures else told


def take_round(
    arms: Mapping[str, Worker], draw: random.Random, seed: int, failures: Counter[str]
) -> dict[str, dict[str, float]] | None:
    """Seconds of each act by each arm. Where one fails, as transfers do on a machine that stands still: none."""
    taken: dict[str, dict[str, float]] = {}
    for name in ACTS:
        taken[name] = {}
        for arm in draw.sample(ARMS, len(ARMS)):
            try:
                taken[name][arm] = arms[arm](f"time_{name}", seed)
            except CallFailed as error:
                failures[arm] += 1
                if failures.total() > _MOST_FAILURES:
                    raise AssertionError(f"{name} by {arm} failed again: {error}") from error
                return None
    return taken


def start_arms(made: Site, block: int, count: int) -> dict[str, Worker]:
    """A process for each arm, ready."""
    arms = {name: made.worker(name, script=_SCRIPT, VLLM_HOST_IP="127.0.0.1", **_QUEUE) for name in ("ours", "theirs")}
    arms["raw"] = made.raw(script=_RAW)
    for one in arms.values():
        one("prepare", block, count)
        one.wait_usable()
    return arms


def summarise(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians and quartiles of times in milliseconds, and of ratios within rounds."""
    return {
        **spread_in_ms(times),
        "times_faster_than_theirs": spread_of_ratios(times["theirs"], times["ours"]),
        "speed_of_raw": spread_of_ratios(times["raw"], times["ours"]),
        "rounds": len(times["ours"]),
    }


if __name__ == "__main__":
    main()
