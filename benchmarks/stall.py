"""How long a connector holds its engine's scheduler up, ours beside vLLM's own: `python benchmarks/stall.py`.

See README.md. Each arm is vLLM's scheduler and one worker on a store of its own, without a model. What happens to the
store happens in the middle of a run. The control is a connector that does nothing, in the same loop: what its calls
cost is this machine's noise. Arms take turns, and the calls of all rounds are taken together.
"""

import argparse
import json
import random
import signal
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from connector.v0.programs import IMPATIENT, Site, Worker, site
from figures import RESULTS, describe_run

ARMS: Final = ("ours", "theirs", "control")
SCENES: Final = ("healthy", "master hung", "master dead", "owner dead", "65k keys")
SEGMENT: Final = 512 << 20
_HERE: Final = Path(__file__).parent
# The store's own answers may take half a minute each, and calls that wait for them follow each other.
_PATIENCE: Final = 600.0


def main() -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--scenes", nargs="*", choices=SCENES, default=SCENES)
    parser.add_argument("--output", type=Path, default=RESULTS / "stall.json")
    arguments = parser.parse_args()
    run = describe_run()
    found: dict[str, dict[str, list[Any]]] = {scene: {arm: [] for arm in ARMS} for scene in arguments.scenes}
    draw = random.Random(1)
    for number in range(arguments.rounds):
        for scene in arguments.scenes:
            for arm in draw.sample(ARMS, len(ARMS)):
                found[scene][arm].append(take(scene, arm, arguments.seconds))
        print(f"round {number + 1} of {arguments.rounds}", flush=True)
    scenes = {scene: summarise(arms) for scene, arms in found.items()}
    result = {**run, "rounds": arguments.rounds, "seconds": arguments.seconds, "scenes": scenes}
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(scenes, indent=2))


def take(scene: str, arm: str, seconds: float) -> dict[str, Any]:
    """One run of one arm on a store of its own: stalls and times of its calls, in microseconds."""
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as made:
        owner = made.raw(SEGMENT)
        # Engines get this from the operator. By itself, theirs would wait half a minute for each call.
        env = {"VLLM_HOST_IP": "127.0.0.1", "MC_RPC_TIMEOUT_MS": IMPATIENT}
        one = made.worker(arm, script=_HERE / "stall_worker.py", **env)
        one("prepare", 70_000 if scene == "65k keys" else 4000)
        one.wait_usable()
        one("warm")
        harm = threading.Timer(seconds / 4, harm_of(scene, made, owner))
        harm.start()
        try:
            found: dict[str, Any] = one("run", seconds, scene == "65k keys", seconds=seconds + _PATIENCE)
        finally:
            harm.cancel()
            # A process that is stopped cannot end.
            made.master.send(signal.SIGCONT)
        return found


def harm_of(scene: str, made: Site, owner: Worker) -> Callable[[], None]:
    """What happens to the store."""
    harms: Mapping[str, Callable[[], None]] = {
        "master hung": lambda: made.master.send(signal.SIGSTOP),
        "master dead": lambda: made.master.send(signal.SIGKILL),
        "owner dead": owner.stop,
    }
    return harms.get(scene, lambda: None)


def summarise(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Per arm: its calls, their stalls and times in milliseconds, and the call of the longest stall."""
    told: dict[str, Any] = {arm: summarise_arm(runs) for arm, runs in arms.items()}
    control = told["control"]["stall_ms"]
    for arm in ("ours", "theirs"):
        stall = told[arm]["stall_ms"]
        told[arm]["stall_less_control_ms"] = {name: round(stall[name] - control[name], 3) for name in stall}
    return told


def summarise_arm(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One arm, all its runs together."""
    stalls = [(amount, name) for run in runs for name, found in run["stalls"].items() for amount in found]
    died = sorted({run["died"] for run in runs if run["died"]})
    return {
        "calls": len(stalls),
        "stall_ms": quantiles([amount for amount, _ in stalls]),
        "wall_ms": quantiles([amount for run in runs for amount in run["walls"]]),
        "longest_in": max(stalls)[1],
        **({"died": died} if died else {}),
    }


def quantiles(microseconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    cuts = statistics.quantiles(microseconds, n=1000, method="inclusive")
    picked = {"p50": cuts[499], "p99": cuts[989], "p99.9": cuts[998], "longest": max(microseconds)}
    return {name: round(value / 1000, 3) for name, value in picked.items()}


if __name__ == "__main__":
    main()
