"""The V0 connector against vLLM 0.9.2's own, and against bare transfers: `python benchmarks/v0.py` (see README.md).

Sending and receiving one sequence of 1000 tokens are timed apart. All values lie in the memory of a process beside, so
that each byte goes through TCP. In each round every arm runs once, in an order drawn anew, so that what else the
machine does meets all of them; ratios are taken within rounds.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from connector.v0.original_environment import original_python
from connector.v0.programs import Site, Worker, site
from figures import RESULTS, describe_run, spread_in_ms, spread_of_ratios

TOKENS: Final = 1000
BLOCK_SIZE: Final = 16
SEGMENT: Final = 3 << 30
# Geometries of one rank: heads, sizes and layers as these models have them; bfloat16.
MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "SmolLM2-135M": {"layers": 30, "attention_heads": 9, "kv_heads": 3, "hidden_size": 576},
    "Llama-3.1-8B, 1 of 4 ranks": {"layers": 32, "attention_heads": 32, "kv_heads": 8, "hidden_size": 4096, "tp": 4},
}
ARMS: Final = ("ours", "original", "raw")
_WARM_UP: Final = 3


def main() -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--output", type=Path, default=RESULTS / "v0.json")
    arguments = parser.parse_args()
    run = describe_run()
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as made:
        made.raw(SEGMENT)
        models = {name: measure(made, geometry, arguments.rounds) for name, geometry in MODELS.items()}
    result = {
        **run,
        "tokens": TOKENS,
        "block_size": BLOCK_SIZE,
        "dtype": "bfloat16",
        "note": "receive is indicative: the original's CUDA kernels are replaced by indexing with torch",
        "models": models,
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(models, indent=2))


def measure(made: Site, geometry: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Times of all arms on one geometry."""
    arms = start_arms(made, {**geometry, "dtype": "bfloat16"})
    times: dict[str, dict[str, list[float]]] = {name: {arm: [] for arm in ARMS} for name in ("send", "receive")}
    draw = random.Random(1)
    for number in range(-_WARM_UP, rounds):
        for name, method in (("send", "time_send"), ("receive", "time_recv")):
            for arm in draw.sample(ARMS, len(ARMS)):
                # The two connectors have the same keys for the same tokens.
                seconds = arms[arm](method, 100_000 + 10 * (number + _WARM_UP) + ARMS.index(arm))
                if number >= 0:
                    times[name][arm].append(seconds)
        arms["raw"]("clear")
    sizes = arms["ours"]("sizes")
    for one in arms.values():
        one.stop()
    return {"kv_bytes": sizes[0], "hidden_bytes": sizes[1], **{name: summarise(found) for name, found in times.items()}}


def start_arms(made: Site, geometry: Mapping[str, Any]) -> dict[str, Worker]:
    """A process for each arm."""
    script = Path(__file__).with_name("v0_worker.py")
    arms = {
        "ours": made.worker("ours", script=script),
        "original": made.worker("original", original_python(), script),
        "raw": made.raw(script=script),
    }
    for name in ("ours", "original"):
        arms[name].open(dict(geometry))
        arms[name]("prepare", TOKENS, BLOCK_SIZE)
    arms["raw"]("prepare", arms["ours"]("sizes"))
    return arms


def summarise(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians and quartiles of times in milliseconds, and of ratios within rounds."""
    return {
        **spread_in_ms(times),
        "times_faster_than_original": spread_of_ratios(times["original"], times["ours"]),
        "times_of_raw": spread_of_ratios(times["ours"], times["raw"]),
        "rounds": len(times["ours"]),
    }


if __name__ == "__main__":
    main()
