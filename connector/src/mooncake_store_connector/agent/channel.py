"""One end of the local socket between an engine's process and its agent. Nothing here waits."""

import array
import os
import socket
import struct
from collections import deque
from typing import Final

import msgspec

from mooncake_store_connector.agent.messages import Message, decode, encode

_LARGEST: Final = 1 << 18
_WAITING: Final = 4096
_AT_ONCE: Final = 256
_CREDENTIALS: Final = struct.Struct("3i")


class ChannelClosedError(Exception):
    """The other end is gone, or does not read."""


class Channel:
    """Sends and receives messages. What does not fit the socket's buffer waits here, up to a bound."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._outbox: deque[bytes] = deque()

    @classmethod
    def connect(cls, name: str) -> "Channel":
        """Connect to the agent of this name. Raises OSError while there is none."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        connected.setblocking(False)
        try:
            connected.connect(address_of(name))
        except OSError:
            connected.close()
            raise
        return cls(connected)

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait to be sent."""
        return bool(self._outbox)

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message, now or when there is room. A descriptor goes only with a message that fits at once."""
        if descriptor is not None:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
            try:
                self._socket.sendmsg([encode(message)], ancillary)
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            return
        self._outbox.append(encode(message))
        if len(self._outbox) > _WAITING:
            raise ChannelClosedError("the other end does not read")
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._outbox:
            try:
                self._socket.send(self._outbox[0])
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            self._outbox.popleft()

    def receive(self) -> list[Message]:
        """The messages that have come, without those of descriptors."""
        return [message for message, _ in self.receive_with_descriptors()]

    def receive_with_descriptors(self) -> list[tuple[Message, int | None]]:
        """The messages that have come, each with the descriptor that came along. A bounded number at once."""
        found: list[tuple[Message, int | None]] = []
        while len(found) < _AT_ONCE:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(_LARGEST, socket.CMSG_SPACE(4))
            except BlockingIOError:
                break
            except ConnectionResetError:
                # The other end has gone with messages unread. The kernel says so once; what it had sent comes after.
                continue
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not data:
                if found:
                    break
                raise ChannelClosedError("the other end is gone")
            if flags & socket.MSG_TRUNC:
                raise ChannelClosedError("a message was too long")
            try:
                found.append((decode(data), _descriptor(ancillary)))
            except msgspec.MsgspecError as error:
                raise ChannelClosedError(f"a message that makes no sense: {error}") from error
        return found

    def close(self) -> None:
        """End it."""
        self._socket.close()


def address_of(name: str) -> str:
    """The socket's address: in the kernel's own namespace, so no file is left behind."""
    return f"\0mooncake-store-agent-{name}"


def listen(name: str) -> socket.socket:
    """A socket that takes connections under the name. Raises OSError when the name is taken."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.setblocking(False)
    listener.bind(address_of(name))
    listener.listen(64)
    return listener


def is_ours(connected: socket.socket) -> bool:
    """Whether the other end runs as the same user: such sockets have no file permissions."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.getuid())


def _descriptor(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return array.array("i", data[: len(data) - len(data) % 4])[0]
    return None
