"""A store client that may come late and go away, for code that takes a store for granted.

vLLM's connector sets its store up on the engine's thread and gives up when that fails: 90 s without a master.
This stands in its place. `setup` returns at once and a thread joins the store as soon as there is one. Until then, and
while the master does not answer, every block is missing, every save fails, and neither takes time.
"""

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from mooncake_store_connector.addresses import split_host_port
from mooncake_store_connector.config import DEFAULT_MASTER_PORT

logger = logging.getLogger("vllm.mooncake_store_connector")

# Mooncake's codes for "the master did not answer" and "too late".
RPC_FAILED: Final = (-900, -901)
RPC_FAIL: Final = -900
TRANSFER_FAIL: Final = -800
_RETRY_SECONDS: Final = 2.0
_PROBE_KEY: Final = "mooncake-store-connector-probe"
_MASTER_ARGUMENT: Final = 6


class StoreClient(Protocol):
    """What is used of Mooncake's client."""

    def setup(self, *args: Any, **keywords: Any) -> int:
        """0, or a negative code."""

    def register_buffer(self, address: int, size: int) -> int:
        """0, or a negative code."""

    def close(self) -> int:
        """Leave the store."""

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """For each key 1, 0 or a negative code."""


class JoiningStore:
    """Has the methods of Mooncake's client that vLLM's connector calls. Safe to use from several threads."""

    def __init__(self, client: Callable[[], Any], namespace: str, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._make_client = client
        self._namespace = namespace
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._joined: Any | None = None
        self._answers = True
        self._buffers: list[tuple[int, int]] = []
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._told = ""

    # -- joining ------------------------------------------------------------------------------------------------------

    def setup(self, *args: Any, **keywords: Any) -> int:
        """Start joining, and return 0. What Mooncake's client takes."""
        arguments = (args, keywords)
        threading.Thread(target=self._keep_joined, args=arguments, name="mooncake-join", daemon=True).start()
        return 0

    @property
    def is_usable(self) -> bool:
        """Whether calls go to the store."""
        return self._joined is not None and self._answers

    def _keep_joined(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        while not self._stop.is_set():
            if self._joined is None:
                self._try_join(args, keywords)
            elif not self._answers:
                self._probe()
            self._wake.wait(None if self.is_usable else self._retry_seconds)
            self._wake.clear()

    def _try_join(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if reason := _unreachable(args):
            self._tell("The Mooncake master cannot be reached, serving without the store: %s", reason)
            return
        try:
            client = self._make_client()
            code = client.setup(*args, **keywords)
            if code == 0:
                code = self._adopt(client)
            if code != 0:
                client.close()
                self._tell("Joining the Mooncake store failed with %s, serving without it", code)
        except Exception as error:
            self._tell("Joining the Mooncake store failed, serving without it: %s", error)

    def _adopt(self, client: StoreClient) -> int:
        """Register what was registered so far, and let calls through. 0, or the first failure."""
        with self._lock:
            for address, size in self._buffers:
                if (code := client.register_buffer(address, size)) != 0:
                    return code
            if self._stop.is_set():
                return RPC_FAIL
            self._joined = client
        self._told = ""
        logger.info("Joined the Mooncake store")
        return 0

    def _probe(self) -> None:
        client = self._joined
        try:
            answer = client.batch_is_exist([_PROBE_KEY]) if client is not None else [RPC_FAIL]
        except Exception:
            return
        if answer and answer[0] not in RPC_FAILED:
            self._answers = True
            self._told = ""
            logger.info("The Mooncake store answers again")

    def _lost(self, why: object) -> None:
        if self._answers:
            self._answers = False
            logger.warning("The Mooncake store does not answer (%s), serving without it until it does", why)
            self._wake.set()

    def _tell(self, message: str, detail: object) -> None:
        text = message % (detail,)
        if text != self._told:
            logger.warning(text)
            self._told = text

    # -- what vLLM's connector calls ----------------------------------------------------------------------------------

    def register_buffer(self, address: int, size: int) -> int:
        """Remember the buffer, and register it once there is a store."""
        with self._lock:
            self._buffers.append((address, size))
            client = self._joined
            code = int(client.register_buffer(address, size)) if client is not None else 0
            if client is not None and code != 0:
                # Transfers from memory that is not registered are undefined over RDMA: leave, and join again with it.
                logger.warning("Registering a buffer failed with %s, leaving the Mooncake store", code)
                self._joined = None
                client.close()
                self._wake.set()
            return code

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """For each key 1 if it is there; 0 for all while there is no store."""
        client = self._joined if self._answers else None
        if client is None or not keys:
            return [0] * len(keys)
        codes = self._call(client.batch_is_exist, keys)
        if codes is None or len(codes) != len(keys):
            return [0] * len(keys)
        if all(code in RPC_FAILED for code in codes):
            self._lost(codes[0])
        return codes

    def batch_put_from_multi_buffers(self, keys: Sequence[str], *args: Any, **keywords: Any) -> list[int]:
        """For each key 0, or a negative code."""
        client = self._joined if self._answers else None
        codes = self._call(client.batch_put_from_multi_buffers, keys, *args, **keywords) if client is not None else None
        if codes is None or len(codes) != len(keys):
            return [RPC_FAIL] * len(keys)
        if codes and all(code in RPC_FAILED for code in codes):
            self._lost(codes[0])
        return codes

    def batch_get_into_multi_buffers(
        self, keys: Sequence[str], addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]], *args: Any
    ) -> list[int]:
        """For each key its number of bytes, or a negative code. Fewer bytes than asked for are a failure."""
        client = self._joined if self._answers else None
        get = client.batch_get_into_multi_buffers if client is not None else None
        codes = self._call(get, keys, addresses, sizes, *args) if get is not None else None
        if codes is None or len(codes) != len(keys):
            return [RPC_FAIL] * len(keys)
        return [
            code if code < 0 or code == sum(wanted) else TRANSFER_FAIL
            for code, wanted in zip(codes, sizes, strict=True)
        ]

    def remove_all(self, force: bool = False) -> int:
        """Remove what this namespace stored, and nothing of others who use the same master."""
        client = self._joined
        if client is None:
            msg = "there is no store to reset"
            raise RuntimeError(msg)
        return int(client.remove_by_regex(f"^{_escape(self._namespace)}@.*", force))

    def close(self) -> int:
        """Leave the store, and join no more."""
        self._stop.set()
        self._wake.set()
        with self._lock:
            client, self._joined = self._joined, None
        return int(client.close() or 0) if client is not None else 0

    def __getattr__(self, name: str) -> Any:
        """Anything else goes to the store itself."""
        client = self.__dict__.get("_joined")
        if client is None:
            raise AttributeError(name)
        return getattr(client, name)

    def _call(self, method: Callable[..., Any], *args: Any, **keywords: Any) -> list[int] | None:
        """The codes, or None when the call failed as a whole."""
        try:
            return list(method(*args, **keywords))
        except Exception as error:
            self._lost(error)
            return None


def _escape(text: str) -> str:
    """Text for Mooncake's regular expressions, which are C++'s."""
    return "".join(char if char.isalnum() or char in "-_" else f"\\{char}" for char in text)


def _unreachable(args: tuple[Any, ...]) -> str:
    """Why the master's port cannot be reached, or nothing. Mooncake's own setup would try for 90 s."""
    if len(args) <= _MASTER_ARGUMENT:
        return ""
    address = str(args[_MASTER_ARGUMENT])
    target = split_host_port(address)
    if target is None:
        return ""
    try:
        with socket.create_connection((target.host, target.port or DEFAULT_MASTER_PORT), timeout=2.0):
            return ""
    except OSError as error:
        return f"{address}: {error}"
