"""The operator beside bare writes, on a real API server: `python benchmarks/operator_figures.py` (see README.md).

Two parts, each with an API server of its own. First, resources are applied and built, by the operator and by bare
server-side applies of the same objects with the same client, as many at once. Then 200 resources are settled: what is
written and read while nothing happens, how long an edit takes, and what memory it all needs, also with 500.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from api.operator_runs.site import Operator, Site
from api.operator_runs.test_quiet import count, is_up
from disagg_operator.build.inputs import Manifest
from figures import RESULTS, describe_run, spread, spread_of_ratios
from operator_site import (
    READS,
    WORKERS,
    WRITES,
    Call,
    World,
    apply_bare,
    bodies,
    child_writes,
    count_children,
    cpu_seconds,
    live_children,
    memory_of,
    plan_children,
    serve_all,
    warm_operator,
    world,
    write_bare,
)
from router.programs import eventually

SIZES: Final = (1, 50, 200)
MANY: Final = 500
ARMS: Final = ("operator", "bare")
_LOOKS: Final = "disaggregatedinference_reconcile_total"


def main() -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="at least 2")
    parser.add_argument("--edits", type=int, default=200)
    parser.add_argument("--quiet-seconds", type=float, default=120)
    parser.add_argument("--parts", nargs="+", choices=("build", "settled"), default=("build", "settled"))
    parser.add_argument("--output", type=Path, default=RESULTS / "operator.json")
    arguments = parser.parse_args()
    # A part that is run alone leaves the other's figures as they are. Each tells its own machine, load and commit.
    result = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts:
            run = {**describe_run(), "workers": WORKERS}
            with world(Path(folder) / part, audits_reads=part == "settled") as made:
                if part == "build":
                    told = time_builds(made, arguments.rounds)
                else:
                    told = look_at_settled(made, arguments.edits, arguments.quiet_seconds)
            result[part] = {**run, **told, "load_after": os.getloadavg()[0]}
            arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


@dataclass(frozen=True)
class Sample:
    """One arm once: seconds by the API server's clock, and processor time of etcd, the API server and the client."""

    seconds: float
    cpu: float


def time_builds(made: World, rounds: int) -> dict[str, Any]:
    """Both arms for each number of resources."""
    samples: dict[int, dict[str, list[Sample]]] = {size: {arm: [] for arm in ARMS} for size in SIZES}
    arms = {"operator": time_operator, "bare": time_bare}
    draw = random.Random(1)
    for number in range(rounds):
        for size in SIZES:
            for arm in draw.sample(ARMS, len(ARMS)):
                sample = arms[arm](made, size)
                samples[size][arm].append(sample)
                print(f"round {number + 1} of {rounds}, {size} resources, {arm}: {sample}", flush=True)
    few, all_of_them = (statistics.median(one.seconds for one in samples[size]["operator"]) for size in SIZES[1:])
    told = {str(size): summarise_build(found) for size, found in samples.items()}
    return {**told, "times_longer_for_200_than_for_50": round(all_of_them / few, 2)}


def summarise_build(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """Seconds of both arms and their ratio; the same of processor time, which other load on the machine moves less."""
    seconds = summarise({arm: [one.seconds for one in found] for arm, found in samples.items()})
    return {**seconds, "cpu": summarise({arm: [one.cpu for one in found] for arm, found in samples.items()})}


def time_operator(made: World, size: int) -> Sample:
    """From the apply of the first of so many resources to the last child that the operator writes."""
    site = made.new_site()
    with warm_operator(made, site) as operator:
        expected = size * count_children(site)
        made.audit.read()
        cpu = cpu_seconds(made, operator.program.pid)
        made.apply(site, name_all(size))
        calls = made.audit.follow(lambda calls: count_written(calls, site) >= expected, f"{expected} children")
        cpu = cpu_seconds(made, operator.program.pid) - cpu
    made.remove(site)
    begun = min(call.received for call in calls if is_apply_of_resource(call, site))
    return Sample(max(call.answered for call in child_writes(calls, site)) - begun, cpu)


def time_bare(made: World, size: int) -> Sample:
    """The same objects by the operator's client and identity, without an operator."""
    site = made.new_site()
    groups = apply_bare(made, site, name_all(size))
    expected = sum(map(len, groups))
    made.audit.read()
    cpu = cpu_seconds(made, os.getpid())
    write_bare(site, groups)
    calls = made.audit.follow(lambda calls: count_written(calls, site) >= expected, f"{expected} bare children")
    cpu = cpu_seconds(made, os.getpid()) - cpu
    made.remove(site)
    written = child_writes(calls, site)
    return Sample(max(call.answered for call in written) - min(call.received for call in written), cpu)


def name_all(size: int) -> list[str]:
    """Names for so many resources."""
    return [f"m-{number:03}" for number in range(size)]


def count_written(calls: Iterable[Call], site: Site) -> int:
    """How many different children were written."""
    return len({(call.resource, call.name) for call in child_writes(calls, site)})


def is_apply_of_resource(call: Call, site: Site) -> bool:
    """Whether a user wrote a resource of this namespace."""
    is_resource = call.resource == "disaggregatedinferences" and not call.subresource
    return is_resource and call.verb in WRITES and call.namespace == site.namespace and call.user != site.user


def look_at_settled(made: World, edits: int, quiet_seconds: float) -> dict[str, Any]:
    """What 200 settled resources cost, how long an edit of one takes, and memory, with 500 too."""
    site, bare = made.new_site(), made.new_site()
    apply_bare(made, bare, name_all(WORKERS))
    with warm_operator(made, site) as operator:
        told: dict[str, Any] = {"first_look": count_first_look(made, site)}
        settle(made, site, SIZES[-1])
        told["quiet"] = look_at_quiet(made, site, operator, quiet_seconds)
        told["memory_mib"] = {str(SIZES[-1]): memory_of(operator)}
        told["edit"] = time_edits(made, site, bare, edits)
        settle(made, site, MANY)
        told["memory_mib"][str(MANY)] = memory_of(operator)
    with site.operator() as second:
        told["restart"] = look_at_restart(made, site, second)
    return told


def look_at_restart(made: World, site: Site, operator: Operator) -> dict[str, Any]:
    """A new operator that finds all resources settled: how long it looks at them, what it writes, its memory."""
    made.audit.read()
    started = time.monotonic()
    eventually(lambda: is_up(operator) and count(operator, _LOOKS) >= MANY, f"{MANY} looks", 300)
    seconds = time.monotonic() - started
    calls = wait_quiet(made, site)
    writes = len(list_writes(calls, site))
    return {"resources": MANY, "seconds": round(seconds, 1), "writes": writes, "memory_mib": memory_of(operator)}


def count_first_look(made: World, site: Site) -> dict[str, Any]:
    """Requests for one new resource until its last child is written, and until nothing more happens."""
    made.audit.read()
    expected = count_children(site)
    made.apply(site, ["first"])
    calls = made.audit.follow(lambda calls: count_written(calls, site) >= expected, "the children of one resource")
    last = max(call.answered for call in child_writes(calls, site))
    calls += wait_quiet(made, site)
    ours = [call for call in calls if call.user == site.user]
    return {
        "reads_until_last_child": sum(1 for call in ours if call.verb in READS and call.received <= last),
        "reads_until_quiet": sum(1 for call in ours if call.verb in READS),
        "writes": dict(Counter(f"{call.verb} {call.resource}" for call in ours if call.verb in WRITES)),
    }


def settle(made: World, site: Site, size: int) -> None:
    """Have so many resources in all, each ready, and nothing left to write."""
    have = {body["metadata"]["name"] for body in bodies(site)}
    # The one that the operator was warmed up with counts too.
    made.apply(site, [name for name in name_all(size) if name not in have][: size - len(have) - 1])
    for _ in range(2):
        wait_quiet(made, site)
        serve_all(site)
    wait_quiet(made, site)
    for body in bodies(site):
        states = {condition["type"]: condition["status"] for condition in body["status"]["conditions"]}
        assert states.get("Ready") == "True", f"{body['metadata']['name']}: {states}"


def wait_quiet(made: World, site: Site, seconds: float = 3) -> list[Call]:
    """Wait until the operator has written nothing for so long. Returns all calls meanwhile."""
    seen: list[Call] = []
    last = time.monotonic()
    while time.monotonic() - last < seconds:
        time.sleep(seconds / 10)
        calls = made.audit.read()
        if list_writes(calls, site):
            last = time.monotonic()
        seen += calls
    return seen


def list_writes(calls: Iterable[Call], site: Site) -> list[Call]:
    """What the operator wrote of whatever kind, its Lease left out."""
    return [call for call in calls if call.user == site.user and call.verb in WRITES and call.resource != "leases"]


def look_at_quiet(made: World, site: Site, operator: Operator, seconds: float) -> dict[str, Any]:
    """Writes, looks and reads while nothing happens."""
    made.audit.read()
    looks = count(operator, _LOOKS)
    time.sleep(seconds)
    looks = count(operator, _LOOKS) - looks
    calls = [call for call in made.audit.read() if call.user == site.user]
    reads = Counter(f"{call.verb} {call.resource}" for call in calls if call.verb in READS)
    return {
        "resources": SIZES[-1],
        "seconds": seconds,
        "writes": len(list_writes(calls, site)),
        "looks": int(looks),
        "reads": reads.total(),
        "reads_per_look": round(reads.total() / looks, 2) if looks else None,
        "reads_by_kind": dict(reads.most_common()),
    }


def time_edits(made: World, site: Site, bare: Site, edits: int) -> dict[str, Any]:
    """From an edit of one of many settled resources to the last child written, beside the same writes made bare."""
    draw = random.Random(2)
    known = [body["metadata"]["name"] for body in bodies(site)]
    names = [name for _ in range(edits // len(known) + 1) for name in draw.sample(known, len(known))]
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    trips: list[float] = []
    for number, name in enumerate(names[:edits]):
        for arm in draw.sample(ARMS, len(ARMS)):
            if arm == "bare":
                calls = edit_bare(made, bare, f"m-{number % WORKERS:03}", f"e{number}")
                trips += [call.answered - call.received for call in calls]
            else:
                calls = edit_one(made, site, name, f"e{number}")
            times[arm].append(max(call.answered for call in calls) - min(call.received for call in calls))
    return {
        "edits": edits,
        "operator_ms": in_milliseconds(times["operator"]),
        "bare_writes_ms": in_milliseconds(times["bare"]),
        "round_trip_ms": in_milliseconds(trips),
        "times_of_bare": summarise(times)["times_of_bare"],
    }


def edit_one(made: World, site: Site, name: str, value: str) -> list[Call]:
    """Restart one resource's roles. Returns the edit and what the operator wrote for it."""
    edited = with_restart(site.live("dinf", name), value)
    expected = len(plan_children(site, edited, live_children(site, name)))
    assert expected, f"{name}: nothing is to be written"
    made.audit.read()
    site.edit("dinf", name, {"spec": {"restart": value}})
    calls = made.audit.follow(lambda calls: count_written(calls, site) >= expected, f"the edit of {name}")
    site.serve(name)
    wait_quiet(made, site, 0.5)
    return [call for call in calls if is_apply_of_resource(call, site)] + child_writes(calls, site)


def edit_bare(made: World, site: Site, name: str, value: str) -> list[Call]:
    """The same writes without an operator. Returns them alone: the edit comes before."""
    body = site.edit("dinf", name, {"spec": {"restart": value}})
    applies = plan_children(site, body, live_children(site, name))
    made.audit.read()
    write_bare(site, [applies])
    calls = made.audit.follow(lambda calls: count_written(calls, site) >= len(applies), f"the bare edit of {name}")
    return child_writes(calls, site)


def with_restart(body: Manifest, value: str) -> Manifest:
    """The resource as it will be once its roles are told to restart."""
    metadata = {**body["metadata"], "generation": body["metadata"]["generation"] + 1}
    return {**body, "metadata": metadata, "spec": {**body["spec"], "restart": value}}


def in_milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, 99th percentile and worst."""
    values = [1000 * second for second in seconds]
    p99 = statistics.quantiles(values, n=100, method="inclusive")[98]
    return {**spread(values), "p99": round(p99, 3), "worst": round(max(values), 3)}


def summarise(times: dict[str, list[float]]) -> dict[str, Any]:
    """Spreads of both arms, and of the ratio within rounds."""
    arms = {f"{arm}_seconds": spread(found) for arm, found in times.items()}
    return {**arms, "times_of_bare": spread_of_ratios(times["operator"], times["bare"])}


if __name__ == "__main__":
    main()
