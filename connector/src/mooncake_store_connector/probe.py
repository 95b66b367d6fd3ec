"""Joins a store only after a process beside has joined it: `python -m mooncake_store_connector.probe CONFIG`.

Mooncake's `setup` keeps Python's lock until it is done, so that no other thread of an engine runs meanwhile. With a
master that accepts connections and then says nothing it takes 40 s. The process beside can be ended before.
"""

import dataclasses
import json
import logging
import os
import subprocess
import sys
from typing import Any, Final

from mooncake_store_connector.client import LEAST_BUFFER, ClientConfig, StoreUnavailable, open_client, why_unreachable

logger = logging.getLogger("vllm.mooncake_store_connector")

# A healthy store takes a tenth of a second, and a busy machine a few.
_LIMIT_SECONDS: Final = 10.0
_UNAVAILABLE: Final = 3


def open_answering(config: ClientConfig) -> Any:
    """A client that has joined. Raises StoreUnavailable, soon also when the master does not answer."""
    # A closed port is told without a process.
    if reason := why_unreachable(config.master) or why_silent(config):
        raise StoreUnavailable(reason)
    return open_client(config)


def why_silent(config: ClientConfig, limit_seconds: float = _LIMIT_SECONDS) -> str:
    """Why a store cannot be joined; an empty text if it can, or if that cannot be told."""
    command = [sys.executable, "-m", "mooncake_store_connector.probe", json.dumps(dataclasses.asdict(config))]
    try:
        ran = subprocess.run(  # noqa: S603 - this module
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{config.master} did not let a client join within {limit_seconds:g} s"
    except OSError as error:
        logger.debug("The store is joined without a probe, which cannot be started: %s", error)
        return ""
    return ran.stdout.strip() if ran.returncode == _UNAVAILABLE else ""


def main() -> None:
    """Join, with no memory to lend, and leave at once. Ends with 3 and tells why if that fails."""
    config = ClientConfig(**json.loads(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "w")
    # What the client's library prints is no reason.
    os.dup2(2, 1)
    try:
        # Held until the end: leaving in order takes a second.
        _client = open_client(dataclasses.replace(config, segment_size=0, local_buffer_size=LEAST_BUFFER))
    except StoreUnavailable as error:
        print(error, file=replies, flush=True)
        os._exit(_UNAVAILABLE)
    os._exit(0)


if __name__ == "__main__":
    main()
