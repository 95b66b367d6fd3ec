"""The agent as a program: `python -m mooncake_store_connector.agent NAME`. The engine starts it.

NAME is the engine's. The config file is the one that MOONCAKE_CONFIG_PATH names. Standard input is a pipe that the
engine holds open: when it closes, the engine is gone.
"""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from mooncake_store_connector.agent.channel import listen
from mooncake_store_connector.agent.server import Server
from mooncake_store_connector.client import CONFIG_ENV

_LEAVE_SECONDS: Final = 3


def main() -> int:
    """Serve one engine. The exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(levelname)s %(asctime)s [store agent] %(message)s", datefmt="%m-%d %H:%M:%S"
    )
    # The engine ends the agent by closing the pipe; a terminal's interrupt is for the engine to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    config = os.environ.get(CONFIG_ENV)
    if not config:
        logging.error("%s is not set: it has to name the store's config file", CONFIG_ENV)
        return 2
    try:
        listener = listen(sys.argv[1])
    except OSError as error:
        logging.error("Another agent serves an engine of this name: %s", error)
        return 3
    server = Server(listener, Path(config), sys.stdin.fileno())
    server.run()
    # Leaving a store that is gone may hang, and hold Python's lock meanwhile. The kernel's alarm needs no lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LEAVE_SECONDS)
    server.close()
    return 0


if __name__ == "__main__":
    status = main()
    # Threads may hang in calls to a store that is gone.
    os._exit(status)
