"""API keys from a mounted Secret: read again when the files change, so that a rotation restarts nothing."""

import asyncio
import hashlib
import hmac
import logging
from pathlib import Path

log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20


def read_keys(path: Path) -> frozenset[str]:
    """The keys in a file, or in all files of a directory: one on a line, blanks ignored.

    Raises OSError when it cannot be read, ValueError when a file is larger than 1 MiB or no UTF-8.
    """
    # A mounted Secret holds its real files in hidden directories, and links to them.
    files = [f for f in sorted(path.iterdir()) if not f.name.startswith(".")] if path.is_dir() else [path]
    return frozenset(key for file in files for line in _read(file).splitlines() if (key := line.strip()))


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{file}: larger than {_MAX_BYTES} bytes; expected one key on a line")
    return data.decode()


def bearer(authorization: str) -> str:
    """The key of an Authorization header, or nothing."""
    scheme, _, key = authorization.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


class Keyring:
    """The keys that are good now. Closed until they were read once, and when the file holds none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._digests: frozenset[bytes] = frozenset()
        self._problem = ""
        self._loaded = path is None

    @property
    def required(self) -> bool:
        """Whether clients need a key at all."""
        return self._path is not None

    @property
    def loaded(self) -> bool:
        """Whether the keys were read at least once."""
        return self._loaded

    def accepts(self, authorization: str) -> bool:
        """Whether this Authorization header opens the door. The time it takes does not tell how near a guess was."""
        if not self.required:
            return True
        given = _digest(bearer(authorization))
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return any(matches)

    async def reload(self) -> None:
        """Reads the keys again. If that fails, the present ones stay good."""
        if self._path is None:
            return
        try:
            keys = await asyncio.to_thread(read_keys, self._path)
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError):
                error = ValueError(f"{self._path}: not a list of keys, one on a line, in UTF-8")
            self._tell(f"API keys cannot be read: {error}")
            return
        self._tell("" if keys else f"{self._path} holds no API key: every request is refused")
        digests = frozenset(map(_digest, keys))
        if digests != self._digests:
            log.info("API keys read: %d", len(digests))
        self._digests, self._loaded = digests, True

    async def watch(self, interval: float) -> None:
        """Reads the keys every `interval` seconds, for ever."""
        while True:
            await asyncio.sleep(interval)
            await self.reload()

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem


def _digest(key: str) -> bytes:
    # Digests have one length: comparing them tells nothing of the key's.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
