"""From prefill to decode, ours beside vLLM's own store connector: `python benchmarks/handoff.py` (see README.md).

Two pairs of engines stand side by side, each pair on a store of its own; only one engine works at a time. In each
round every arm has a new prompt of each length, in an order drawn anew: decode is asked the moment that prefill has
answered, a second after that, or without prefill. Two figures come of it: which part of the tokens that whole blocks
allow came from the store, and the time to decode's first token against the same engine's time without prefill.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from connector.engines import BLOCK, Engine, engine, transfer_config, wait_ready, write_store_config
from connector.processes import master
from figures import RESULTS, describe_run, spread

LENGTHS: Final = (500, 1000, 2000, 3500)
ARMS: Final = ("ours at once", "theirs at once", "ours after 1 s", "theirs after 1 s", "ours cold", "theirs cold")
HITS: Final = "vllm:external_prefix_cache_hits_total"
THEIRS: Final = json.dumps({"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"})
_ASK: Final = {"mooncake_store": {"v": 1}}
_WARM_UP: Final = 1


@dataclass(frozen=True)
class Pair:
    """Prefill and decode on one store."""

    prefill: Engine
    decode: Engine


@dataclass(frozen=True)
class Sample:
    """One prompt through one arm: the part of its whole blocks that was loaded, and seconds to the first token."""

    loaded: float
    seconds: float


def main() -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", type=Path, default=RESULTS / "handoff.json")
    arguments = parser.parse_args()
    run = describe_run()
    with tempfile.TemporaryDirectory() as folder, pairs(Path(folder)) as made:
        samples = measure(made, arguments.rounds)
    result = {
        **run,
        "rounds": arguments.rounds,
        "dtype": "float32",
        "block_size": BLOCK,
        "lengths": {str(length): summarise(found) for length, found in samples.items()},
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


@contextmanager
def pairs(folder: Path) -> Iterator[dict[str, Pair]]:
    """Both pairs, ready."""
    with ExitStack() as running:
        made = {}
        for name, config in (("ours", transfer_config()), ("theirs", THEIRS)):
            (folder / name).mkdir()
            port, _ = running.enter_context(master(folder / name / "master.log"))
            engines = []
            for role in ("prefill", "decode"):
                place = folder / name / role
                place.mkdir()
                store = write_store_config(place, port)
                engines.append(running.enter_context(engine(place, config=config, store=store)))
            made[name] = Pair(*engines)
        for pair in made.values():
            wait_ready(pair.prefill)
            wait_ready(pair.decode)
        yield made


def measure(made: Mapping[str, Pair], rounds: int) -> dict[int, dict[str, list[Sample]]]:
    """All samples, by length and arm."""
    samples: dict[int, dict[str, list[Sample]]] = {length: {arm: [] for arm in ARMS} for length in LENGTHS}
    draw = random.Random(1)
    for number in range(-_WARM_UP, rounds):
        for length in LENGTHS:
            for arm in draw.sample(ARMS, len(ARMS)):
                prompt = [draw.randrange(100, 40_000) for _ in range(length)]
                whose, _, way = arm.partition(" ")
                sample = take(made[whose], prompt, way)
                if number >= 0:
                    samples[length][arm].append(sample)
        print(f"round {number + 1} of {rounds}", flush=True)
    return samples


def take(pair: Pair, prompt: list[int], way: str) -> Sample:
    """One prompt. `way` is "at once", "after 1 s" or "cold"."""
    params = None
    if way != "cold":
        params = pair.prefill.complete(prompt, 1, _ASK).get("kv_transfer_params")
    if way == "after 1 s":
        time.sleep(1)
    before = pair.decode.counter(HITS)
    started = time.monotonic()
    pair.decode.complete(prompt, 1, params)
    seconds = time.monotonic() - started
    loaded = pair.decode.counter(HITS) - before
    return Sample(loaded / ((len(prompt) - 1) // BLOCK * BLOCK), seconds)


def summarise(found: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """Per arm: the part loaded (median and minimum) and the time to the first token over the same round's cold."""
    told: dict[str, Any] = {}
    for arm, samples in found.items():
        whose, _, way = arm.partition(" ")
        told[arm] = {"seconds": spread([sample.seconds for sample in samples])}
        if way != "cold":
            ratios = [s.seconds / cold.seconds for s, cold in zip(samples, found[f"{whose} cold"], strict=True)]
            loaded = [sample.loaded for sample in samples]
            told[arm] |= {"of_cold": spread(ratios), "loaded": spread(loaded), "loaded_least": round(min(loaded), 3)}
    return told


if __name__ == "__main__":
    main()
