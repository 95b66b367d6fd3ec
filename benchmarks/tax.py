"""What a connector costs where it finds nothing: `python benchmarks/tax.py` (see README.md).

Three engines stand side by side, and one of them works at a time: one without a connector, one whose connector looks
every prompt up, and one whose connector stores every prompt. All prompts are random, so that none is found. Processor
time is that of all of an engine's processes: API server, engine core, workers and agent. Other work on the machine
moves it much less than seconds on the clock, which are told beside it.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from connector.engines import Engine, engine, transfer_config, wait_ready, write_store_config
from connector.processes import master
from connector.store_programs import P2P, Client, client
from figures import RESULTS, describe_run, spread

PLAIN: Final = "none"
ARMS: Final = ("consumer", "producer")
# Room for all prompts of a batch, and no more: three engines have to fit.
_FLAGS: Final = ("--kv-cache-memory-bytes", str(512 << 20))
_WARM_UP: Final = 1
_TICKS: Final = os.sysconf("SC_CLK_TCK")
# What is stored last is stored after its request has been answered.
_SETTLE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Sample:
    """One batch of prompts: seconds of processors, and on the clock, for each request."""

    cpu: float
    wall: float


def main() -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--prompts", type=int, default=8, help="requests in a batch, all at once")
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--answer", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=ARMS, help="beside the engine without a connector")
    parser.add_argument("--output", type=Path, default=RESULTS / "tax.json")
    arguments = parser.parse_args()
    run = describe_run()
    with tempfile.TemporaryDirectory() as folder, engines(Path(folder), arguments.arms) as (made, store):
        samples = measure(made, store, arguments)
    result = {
        **run,
        "rounds": arguments.rounds,
        "dtype": "float32",
        "prompts": arguments.prompts,
        "prompt_tokens": arguments.tokens,
        "answer_tokens": arguments.answer,
        "arms": summarise(samples),
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


@contextmanager
def engines(folder: Path, arms: Sequence[str]) -> Iterator[tuple[dict[str, Engine], Client]]:
    """All engines, ready, and a client that can empty the store."""
    with ExitStack() as running:
        port, _ = running.enter_context(master(folder / "master.log"))
        store = running.enter_context(client(folder / "client.log"))
        assert store.join(P2P, port, segment=0) == 0
        made = {}
        for arm in (PLAIN, *arms):
            place = folder / arm
            place.mkdir()
            config = None if arm == PLAIN else configure(f"kv_{arm}")
            file = None if arm == PLAIN else write_store_config(place, port)
            made[arm] = running.enter_context(engine(place, config=config, store=file, flags=_FLAGS))
            # One after the other: an engine that starts needs more memory than one that runs.
            wait_ready(made[arm])
        yield made, store


def configure(role: str) -> str:
    """The `--kv-transfer-config` of one role."""
    return json.dumps({**json.loads(transfer_config()), "kv_role": role})


def measure(made: Mapping[str, Engine], store: Client, arguments: argparse.Namespace) -> dict[str, list[Sample]]:
    """All samples of each arm."""
    samples: dict[str, list[Sample]] = {arm: [] for arm in made}
    draw = random.Random(time.time_ns())
    for number in range(-_WARM_UP, arguments.rounds):
        for arm in draw.sample(list(made), len(made)):
            prompts = [[draw.randrange(100, 40_000) for _ in range(arguments.tokens)] for _ in range(arguments.prompts)]
            sample = take(made[arm], prompts, arguments.answer)
            if number >= 0:
                samples[arm].append(sample)
        # A full store would take nothing, and cost nothing.
        store("remove_all", True)
        print(f"round {number + 1} of {arguments.rounds}", flush=True)
    return samples


def take(one: Engine, prompts: Sequence[list[int]], answer_tokens: int) -> Sample:
    """One batch."""
    before, begin = cpu_seconds(one.process.pid), time.monotonic()
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(lambda prompt: one.complete(prompt, answer_tokens), prompts))
    wall = time.monotonic() - begin
    time.sleep(_SETTLE_SECONDS)
    return Sample((cpu_seconds(one.process.pid) - before) / len(prompts), wall / len(prompts))


def cpu_seconds(session: int) -> float:
    """Seconds of processors that all processes of a session have had, and those that have ended in it."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        # After the name, which may hold anything: state, parent, group, session; then from the eleventh on times of
        # the process, and of its children that have ended: proc(5).
        fields = text.rpartition(")")[2].split()
        if int(fields[3]) == session:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


def summarise(samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """Per arm: seconds a request, and what they are of those of the same round without a connector."""
    told: dict[str, Any] = {}
    for arm, found in samples.items():
        told[arm] = {
            "cpu_seconds": spread([sample.cpu for sample in found]),
            "wall_seconds": spread([sample.wall for sample in found]),
        }
        if arm != PLAIN:
            pairs = list(zip(found, samples[PLAIN], strict=True))
            told[arm] |= {
                "cpu_of_none": spread([one.cpu / none.cpu for one, none in pairs]),
                "throughput_of_none": spread([none.wall / one.wall for one, none in pairs]),
            }
    return told


if __name__ == "__main__":
    main()
