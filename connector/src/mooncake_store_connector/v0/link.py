"""The client of a store that may come late, not answer, or go away.

While there is no store to talk to, callers are told so at once: no call waits for a store that did not answer just now.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from mooncake_store_connector.client import ClientConfig, StoreUnavailable
from mooncake_store_connector.codes import Outcome
from mooncake_store_connector.outage import Outage
from mooncake_store_connector.probe import open_answering

logger = logging.getLogger("vllm.mooncake_store_connector.v0")

# Joining a store that is well takes less. Longer, and the engine starts without it.
_JOIN_SECONDS: Final = 15.0


class StoreLink:
    """Joins when made, and again in a thread of its own while that fails. Safe to use from several threads."""

    def __init__(self, config: ClientConfig, open_: Callable[[ClientConfig], Any] = open_answering) -> None:
        self._config = config
        self._open = open_
        self._lock = threading.Lock()
        self._client: Any | None = None
        self._outage = Outage()
        self._joiner: threading.Thread | None = None
        self._is_closed = False
        self._told = ""
        self._start_joining(wait=_JOIN_SECONDS)

    def client(self) -> Any | None:
        """The client that has joined, or None while the store is to be left alone."""
        with self._lock:
            if self._is_closed or self._outage.is_open(time.monotonic()):
                return None
            if self._client is not None:
                return self._client
        self._start_joining()
        return None

    def report(self, outcome: Outcome) -> None:
        """Tell how a call went: a store that did not answer is left alone for a while, longer each time."""
        with self._lock:
            if outcome is not Outcome.UNREACHABLE:
                if self._outage.failures:
                    logger.info("The Mooncake store at %s answers again", self._config.master)
                self._outage.answered()
                return
            self._outage.failed(time.monotonic())
            if self._outage.failures == 1:
                logger.warning("The Mooncake store at %s does not answer; going on without it", self._config.master)

    def close(self) -> Any | None:
        """Join no more. The client, if there is one, is the caller's to close."""
        with self._lock:
            self._is_closed = True
            client, self._client = self._client, None
        return client

    def _start_joining(self, wait: float = 0) -> None:
        with self._lock:
            if self._is_closed or (self._joiner is not None and self._joiner.is_alive()):
                return
            self._joiner = threading.Thread(target=self._join, name="mooncake-v0-join", daemon=True)
            self._joiner.start()
        self._joiner.join(wait)

    def _join(self) -> None:
        try:
            client = self._open(self._config)
        except Exception as error:
            with self._lock:
                self._outage.failed(time.monotonic())
            self._tell(str(error), error)
            return
        with self._lock:
            if not self._is_closed:
                self._client = client
                self._outage.answered()
                client = None
        if client is not None:
            client.close()
            return
        logger.info("Joined the Mooncake store at %s", self._config.master)

    def _tell(self, text: str, error: Exception) -> None:
        if text != self._told:
            unexpected = None if isinstance(error, StoreUnavailable) else error
            logger.warning("Going on without a Mooncake store, until it can be joined: %s", text, exc_info=unexpected)
            self._told = text
