"""Threads that wait inside Mooncake's client: they give way to those that move bytes, and may be starved.

Mooncake's calls wait for their transfers by asking over and over, with all of a core. On a busy machine that keeps its
own transfer threads from running: a load of 0.03 s took a second (measured on two cores).
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

_STEPS: Final = 5
_LOWEST: Final = 19
_NANO: Final = 1e-9


def give_way() -> None:
    """Lower the calling thread's priority, and no other's."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        present = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(_LOWEST, present + _STEPS))


def starved_seconds(thread: int) -> float:
    """How long a thread of this process was ready to run and had no core, in all; 0 where the kernel does not say."""
    try:
        # Time on a core, time waiting for one, and how often: proc(5).
        fields = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
        return int(fields[1]) * _NANO
    except (OSError, ValueError, IndexError):
        return 0.0
