"""One at a time: commands that change the same thing wait for each other."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from cluster import paths


@contextmanager
def exclusive(what: str) -> Iterator[None]:
    """Hold the lock named `what` while the block runs. Says so when it has to wait. The kernel frees it at a crash."""
    directory = paths.cache() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{what}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{what}: another command is at it; waiting", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
