"""Work that may hang, and is given up in time: in a thread if Python's lock is let go of, else in a process."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO, TypeVar

_T = TypeVar("_T")


class Deadline:
    """When all has to be over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, most: float = float("inf")) -> float:
        """Seconds that are left, of which at most so many are wanted."""
        return max(0.0, min(most, self._end - time.monotonic()))


@dataclass(frozen=True)
class Ran:
    """How a program of ours ended. `status` is None if it was ended because its time was over."""

    status: int | None
    said: str


def run_in_thread(act: Callable[[], _T], seconds: float, late: _T) -> _T:
    """What `act` returns, or `late` if it takes too long. For waits of the network, such as resolving a name."""
    results: list[_T] = []
    thread = threading.Thread(target=lambda: results.append(act()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else late


def program(module: str, *arguments: str) -> list[str]:
    """The command of a module of this package."""
    return [sys.executable, "-m", f"mooncake_store_connector.doctor.{module}", *arguments]


def run_program(command: Sequence[str], seconds: float) -> Ran:
    """Run one of our programs to its end, or to the end of its time."""
    try:
        ran = subprocess.run(  # noqa: S603 - our own program
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Ran(None, "")
    return Ran(ran.returncode, ran.stdout.strip())


def open_replies() -> TextIO:
    """Where a program of ours answers. What Mooncake's library prints goes to standard error instead."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies
