"""A store whose master, metadata service, memory and objects fail when a test says so."""

import signal
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from connector.processes import Process, free_port, master
from connector.store_programs import P2P, Client, client, metadata_service

_MIB = 1 << 20


class FaultyStore:
    """A master, a client that looks into the store and lends a little memory, and a metadata service if wished.

    `port` is the master's; `metadata` is what engines' config files have to name.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing runs yet."""
        self.folder = folder
        self.port = free_port()
        self.metadata = P2P
        self._admin = 0
        self._running = ExitStack()
        self._service = ExitStack()
        self._service_port = 0
        self._flags: tuple[str, ...] = ()
        self._master: Process | None = None
        self._other: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._master is not None and self._master.is_running:
            self._master.send(signal.SIGCONT)
        self._running.close()
        self._service.close()

    # -- running ------------------------------------------------------------------------------------------------------

    def start(self, *flags: str, has_metadata_service: bool = False) -> None:
        """Start the master with these flags of its own."""
        self._flags = flags
        if has_metadata_service:
            self._service_port = free_port()
            self.metadata = f"http://127.0.0.1:{self._service_port}/metadata"
            self._start_service()
        self._start_master()

    def kill(self) -> None:
        """The master dies."""
        assert self._master is not None
        self._master.stop(signal.SIGKILL)

    def hang(self) -> None:
        """The master accepts connections and says nothing."""
        assert self._master is not None
        self._master.send(signal.SIGSTOP)

    def restart(self) -> None:
        """The master dies; another comes at its address and knows of nothing."""
        self.kill()
        self._start_master()

    def move(self) -> None:
        """The master dies; another comes elsewhere."""
        self.kill()
        self.port = free_port()
        self._start_master()

    def restart_service(self) -> None:
        """The metadata service dies; another comes at its address and knows nobody."""
        self._service.close()
        self._start_service()

    def _start_master(self) -> None:
        self._admin = free_port()
        flags = (f"--metrics_port={self._admin}", *self._flags)
        log = self.folder / f"master-{self.port}-{self._admin}.log"
        _, self._master = self._running.enter_context(master(log, port=self.port, flags=flags))

    def _start_service(self) -> None:
        self._service.enter_context(metadata_service(self.folder / "metadata.log", self._service_port))

    # -- objects ------------------------------------------------------------------------------------------------------

    def fill(self) -> int:
        """Leave no room: objects that cannot be evicted fill it. How many."""
        other, filled = self._joined(), 0
        for size in (_MIB, _MIB >> 4, _MIB >> 8):
            while other("put", f"filler-{filled}", "x" * size) == 0:
                # A look gives a lease.
                other("batch_is_exist", [f"filler-{filled}"])
                filled += 1
        return filled

    def blocks(self) -> list[str]:
        """Keys of all engines' blocks, once no more of them come."""
        known: list[str] = []
        since = time.monotonic()
        while time.monotonic() - since < 1.0:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._admin}/get_all_keys", timeout=30) as response:
                found = response.read().decode().split()
            if found != known:
                known, since = found, time.monotonic()
            time.sleep(0.1)
        # Of a namespace there are its epoch and its descriptor as well.
        return sorted(key for key in known if len(key.rsplit(":", 4)) == 5)

    def replace(self, key: str, *, has_its_size: bool) -> bool:
        """Put an object with one wrong byte in the place of one, or one that is longer. False if it is not there."""
        other = self._joined()
        good = bytes.fromhex(other("get_hex", key))
        if not good:
            return False
        bad = bytes([good[0] ^ 1]) + good[1:] if has_its_size else good + good[:100]
        return bool(other("remove", key, True) == 0 and other("put_hex", key, bad.hex()) == 0)

    def _joined(self) -> Client:
        if self._other is None:
            self._other = self._running.enter_context(client(self.folder / "other.log"))
            assert self._other.join(self.metadata, self.port, segment=16 * _MIB) == 0
        return self._other
