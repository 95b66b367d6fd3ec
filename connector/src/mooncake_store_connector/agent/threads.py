"""Threads that wait inside Mooncake's client give way to those that move bytes.

Mooncake's calls wait for their transfers by asking over and over, with all of a core. On a busy machine that keeps its
own transfer threads from running: a load of 0.03 s took a second (measured on two cores).
"""

import contextlib
import os
import threading
from typing import Final

_STEPS: Final = 5
_LOWEST: Final = 19


def give_way() -> None:
    """Lower the calling thread's priority, and no other's."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        present = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(_LOWEST, present + _STEPS))
