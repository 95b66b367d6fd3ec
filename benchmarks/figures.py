"""What all benchmarks say of their figures: spread, machine and commit."""

import os
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from results import read_commit

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles; of a single value, that value."""
    low, middle, high = statistics.quantiles(values if len(values) > 1 else 2 * list(values), n=4, method="inclusive")
    return {"median": round(middle, 3), "lower_quartile": round(low, 3), "upper_quartile": round(high, 3)}


def spread_in_ms(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """`<arm>_ms` for each arm: the spread of its times in milliseconds."""
    return {f"{arm}_ms": spread([1000 * second for second in found]) for arm, found in seconds.items()}


def spread_of_ratios(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """The spread of ratios within rounds, one pair of values for each."""
    return spread([one / other for one, other in zip(over, under, strict=True)])


def describe_machine() -> str:
    """Its processor and number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def describe_run() -> dict[str, object]:
    """What has to be known of a run to read its figures. To be asked before it begins."""
    return {
        "machine": describe_machine(),
        "load_before": os.getloadavg()[0],
        "commit": read_commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
