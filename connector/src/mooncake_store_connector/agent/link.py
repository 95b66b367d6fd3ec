"""The agent's link to the store: joined late or lost at any time, and cut as soon as it does not answer.

The circuit breaker: a call that takes too long, or that the master does not answer, cuts the link. While it is cut no
call is made, so a dead or hung store costs nothing. One thread joins, asks now and then whether the store is back,
and reads the config file anew each time, since a master may come back elsewhere. A client is then built beside the old
one, takes its place, and the old one is closed by a thread of its own: closing may hang.
"""

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mooncake_store_connector.addresses import split_host_port
from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.agent.threads import starved_seconds
from mooncake_store_connector.client import LEAST_BUFFER, ClientConfig, StoreUnavailable, placement_near, read_config
from mooncake_store_connector.codes import Outcome, judge
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.descriptor import descriptor_key
from mooncake_store_connector.outage import Outage
from mooncake_store_connector.probe import open_answering
from mooncake_store_connector.problems import ConfigError

logger = logging.getLogger("mooncake_store_connector")

_HEALTHY_PAUSE: Final = 1.0
_CLOSE_SECONDS: Final = 2.0
_IDLE_SECONDS: Final = 120.0
# Longer than MC_RPC_TIMEOUT_MS of our client: a master that hangs is told by its own error, and a busy one is left.
_METADATA_SECONDS: Final = 2.5
_SLOWEST_BYTES_PER_SECOND: Final = 30e6
# A call whose thread had no core for part of the time gets that time back, up to so many times what is allowed.
_PATIENCE: Final = 5.0
_PROBE_KEY: Final = "mooncake-store-connector-probe"
_DESCRIBE_SECONDS: Final = 10.0


class StoreDownError(Exception):
    """The link is cut. The text says why."""


@dataclass(frozen=True)
class _Target:
    """What the config file says, and where it leads now."""

    config: ClientConfig
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class _Call:
    """A call under way. Times are a monotonic clock's seconds."""

    operation: str
    started: float
    allowed: float
    thread: int
    starved: float

    def is_late(self, now: float) -> bool:
        """Whether the store took too long, and not this machine, which had no core for the calling thread."""
        taken = now - self.started
        if taken <= self.allowed or taken > _PATIENCE * self.allowed:
            return taken > self.allowed
        return taken - (starved_seconds(self.thread) - self.starved) > self.allowed


class StoreLink:
    """The store's client, when there is one that answers. Safe to use from several threads."""

    def __init__(
        self,
        config_path: Path,
        namespace: str,
        descriptor: str,
        arenas: list[Arena],
        changed: Callable[[], None],
        replaced: Callable[[int], None],
        counters: Counters,
        epoch: int = 0,
    ) -> None:
        """`changed` is called, from any thread, whenever `is_usable` has changed. `descriptor` may be empty.

        `replaced(life)` is called when another client has taken its place: what lay in the memory of the one before is
        gone. `epoch` is the engine's so far.
        """
        self._config_path = config_path
        self._namespace = namespace
        self._descriptor = descriptor
        self._describe_at = 0.0
        self._arenas = arenas
        self._changed = changed
        self._replaced = replaced
        self._counters = counters
        self._client: Any | None = None
        self._target: _Target | None = None
        self._outage = Outage()
        self._is_usable = False
        self._why = "the store has not been joined yet"
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._busy: Counter[int] = Counter()
        self._serial = 0
        self._wake = threading.Event()
        self._stop = False
        self._reset_wanted = False
        self.epoch = epoch
        self.segment = ""
        self.life = 0

    def start(self) -> None:
        """Start to join."""
        threading.Thread(target=self._run, name="store-link", daemon=True).start()

    def close(self) -> None:
        """Leave the store, if it lets us within two seconds: closing waits for a master that may be gone."""
        self._stop = True
        self._wake.set()
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._is_usable:
            closing = threading.Thread(target=self._close_idle, args=(client,), name="store-close", daemon=True)
            closing.start()
            closing.join(_CLOSE_SECONDS)

    @property
    def is_usable(self) -> bool:
        """Whether calls go to the store."""
        return self._is_usable

    @property
    def why(self) -> str:
        """Why it is not usable; empty when it is."""
        return self._why

    # -- calls --------------------------------------------------------------------------------------------------------

    def call(self, operation: str, *arguments: Any, size: int = 0) -> Any:
        """One call of Mooncake's client, which moves `size` bytes. Raises StoreDownError."""
        client = self._client
        if client is None or not self._is_usable:
            raise StoreDownError(self._why)
        return self._timed(client, operation, *arguments, size=size)

    def placement(self) -> Any:
        """Where a put should go: the nearest segment first, which is this machine's own memory."""
        return placement_near(self.segment)

    def _timed(self, client: Any, operation: str, *arguments: Any, size: int = 0) -> Any:
        thread = threading.get_native_id()
        allowed = _METADATA_SECONDS + size / _SLOWEST_BYTES_PER_SECOND
        one = _Call(operation, time.monotonic(), allowed, thread, starved_seconds(thread))
        with self._lock:
            if client is not self._client:
                raise StoreDownError(self._why)
            self._serial += 1
            serial = self._serial
            self._calls[serial] = one
            self._busy[id(client)] += 1
        try:
            result = getattr(client, operation)(*arguments)
        except Exception as error:
            self.cut(f"{operation} failed: {error}")
            raise StoreDownError(self._why) from error
        finally:
            with self._lock:
                self._calls.pop(serial, None)
                self._busy[id(client)] -= 1
        if isinstance(result, list) and result and all(_is_unanswered(code) for code in result):
            self.cut(f"the master did not answer {operation}: code {result[0]}")
            raise StoreDownError(self._why)
        return result

    def watch(self) -> None:
        """Cut the link if a call takes too long; each call cuts it once. To be called often."""
        now = time.monotonic()
        with self._lock:
            late = [serial for serial, one in self._calls.items() if one.is_late(now)]
            told = [self._calls.pop(serial) for serial in late]
        if told and self._is_usable:
            self.cut(f"{told[0].operation} took over {told[0].allowed:.1f} s")

    def cut(self, why: str) -> None:
        """Stop using the store until it answers again."""
        with self._lock:
            if not self._is_usable and self._why == why:
                return
            was_usable, self._is_usable, self._why = self._is_usable, False, why
            if was_usable:
                self._outage.failed(time.monotonic())
        if was_usable:
            self._counters.add("breaker_opened")
            logger.warning("Serving without the store: %s", why)
        self._changed()
        self._wake.set()

    def reset(self) -> None:
        """From now on use nothing that was stored before. The new epoch is made known in the background."""
        # First the wish: the link must not be opened again in the old epoch.
        self._reset_wanted = True
        self.cut("the cache is being reset")
        self._wake.set()

    # -- joining ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            try:
                self._step()
            except StoreDownError as error:
                self._told(str(error))
            except Exception as error:
                logger.exception("The link to the store failed")
                self._told(str(error))
            self._wake.wait(self._pause())
            self._wake.clear()

    def _pause(self) -> float:
        if self._is_usable:
            return _HEALTHY_PAUSE
        return max(0.05, self._outage.until - time.monotonic()) if self._outage.failures else 0.5

    def _step(self) -> None:
        if self._outage.is_open(time.monotonic()) and self._client is not None and not self._reset_wanted:
            return
        client = self._client
        if client is None or not (self._is_usable or self._is_answering(client)):
            client = self._join()
        if client is not None:
            self._read_epoch(client)
            self._describe(client)

    def _is_answering(self, client: Any) -> bool:
        """Whether the client that we have is still the right one and its master answers."""
        if self._resolve() != self._target:
            return False
        try:
            codes = self._timed(client, "batch_is_exist", [_PROBE_KEY])
        except StoreDownError:
            self._outage.failed(time.monotonic())
            return False
        return bool(codes) and codes[0] >= 0

    def _join(self) -> Any | None:
        """Build a client beside the one that we have, and let it take its place."""
        target = self._resolve()
        if target is None:
            return None
        ranks = max(1, len(self._arenas))
        config = replace(
            target.config,
            segment_size=target.config.segment_size * ranks,
            local_buffer_size=min(target.config.local_buffer_size, LEAST_BUFFER),
        )
        try:
            client = open_answering(config)
        except StoreUnavailable as error:
            self._told(str(error))
            self._outage.failed(time.monotonic())
            return None
        for arena in self._arenas:
            if (code := client.register_buffer(arena.address, arena.size)) != 0:
                self._told(f"memory could not be registered: code {code}")
                _close(client)
                return None
        with self._lock:
            old, self._client, self._target = self._client, client, target
            self.life += 1
        self._replaced(self.life)
        self.segment = str(client.get_hostname())
        self._counters.add("joined")
        if old is not None:
            threading.Thread(target=self._close_idle, args=(old,), name="store-close", daemon=True).start()
        return client

    def _close_idle(self, client: Any) -> None:
        """Close a client that nobody uses any more, once its last call has returned.

        Mooncake's close waits for other calls while it holds Python's lock, which they need to return. A client whose
        calls never return is left alone.
        """
        deadline = time.monotonic() + _IDLE_SECONDS
        while self._busy[id(client)] > 0:
            if time.monotonic() > deadline:
                logger.warning("A client of the store that does not answer is left open")
                return
            time.sleep(0.01)
        _close(client)

    def _resolve(self) -> _Target | None:
        try:
            config = read_config(self._config_path)
        except ConfigError as error:
            self._told(str(error))
            return None
        target = split_host_port(config.master)
        found: set[str] = set()
        with contextlib.suppress(OSError):
            if target is not None:
                found = {str(entry[4][0]) for entry in socket.getaddrinfo(target.host, target.port)}
        return _Target(config, tuple(sorted(found)))

    # -- epochs -------------------------------------------------------------------------------------------------------

    @property
    def _epoch_key(self) -> str:
        return f"{self._namespace}:epoch"

    def _read_epoch(self, client: Any) -> None:
        """Use the store only in the epoch that it is in. Whoever was not reset with it knows nothing of its weights."""
        present = self._stored_epoch(client)
        if self._reset_wanted and present is not None:
            present = self._advance(client, present)
        if present is None:
            self._told("the namespace's epoch cannot be read")
        elif present != self.epoch:
            self._told(
                f"the namespace was reset (epoch {present}, ours is {self.epoch}); reset this engine's cache too, "
                "or give both another cache_prefix"
            )
        elif not self._is_usable:
            self._open()

    def _stored_epoch(self, client: Any) -> int | None:
        codes = self._timed(client, "batch_is_exist", [self._epoch_key])
        if not codes or codes[0] < 0:
            return None
        if codes[0] == 0:
            return 0 if self.epoch == 0 or self._reset_wanted else self._publish(client, self.epoch)
        text = bytes(self._timed(client, "get", self._epoch_key))
        return int(text) if text.isdigit() else None

    def _advance(self, client: Any, present: int) -> int | None:
        """Take over an epoch that others have begun, or begin one."""
        wanted = present if present > self.epoch else self.epoch + 1
        published = wanted if wanted == present else self._publish(client, wanted)
        if published is not None:
            self.epoch = published
            self._reset_wanted = False
            logger.info("The cache was reset: epoch %d of namespace %s", self.epoch, self._namespace)
        return published

    def _publish(self, client: Any, epoch: int) -> int | None:
        code = self._timed(client, "upsert", self._epoch_key, str(epoch).encode())
        return epoch if code == 0 else None

    def _describe(self, client: Any) -> None:
        """Leave the namespace's descriptor in the store if it is not there, or no more. Nothing depends on it."""
        now = time.monotonic()
        if not self._descriptor or not self._is_usable or now < self._describe_at:
            return
        self._describe_at = now + _DESCRIBE_SECONDS
        key = descriptor_key(self._namespace)
        with contextlib.suppress(StoreDownError):
            if self._timed(client, "batch_is_exist", [key]) == [0]:
                code = self._timed(client, "put", key, self._descriptor.encode(), self.placement())
                if code != 0:
                    logger.debug("The descriptor of %s was not stored: code %s", self._namespace, code)

    def _open(self) -> None:
        with self._lock:
            if self._reset_wanted:
                return
            self._outage.answered()
            self._is_usable, self._why = True, ""
        logger.info("Sharing KV through the store at %s", self._target.config.master if self._target else "?")
        self._changed()

    def _told(self, why: str) -> None:
        if why == self._why and not self._is_usable:
            return
        if self._is_usable:
            self.cut(why)
            return
        self._why = why
        logger.warning("Serving without the store: %s", why)
        self._changed()


def _close(client: Any) -> None:
    with contextlib.suppress(Exception):
        client.close()


def _is_unanswered(code: object) -> bool:
    return isinstance(code, int) and judge(code) is Outcome.UNREACHABLE
