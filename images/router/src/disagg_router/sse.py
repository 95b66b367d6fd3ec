"""Cuts a byte stream of server-sent events at event ends, so that a stream that breaks never ends inside one."""

_ENDS = (b"\n\n", b"\r\n\r\n")
_DONE = b"data: [DONE]"


class EventStream:
    """Holds back the stream's unfinished tail, at most `limit` bytes, and knows whether the end was announced."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self._limit = limit
        self._tail = b""
        self._done = False

    @property
    def done(self) -> bool:
        """Whether `[DONE]` passed: what follows is not missed."""
        return self._done

    def feed(self, chunk: bytes) -> bytes:
        """Takes bytes as they come and gives those up to the last finished event."""
        data = self._tail + chunk
        cut = max(end + len(mark) if (end := data.rfind(mark)) >= 0 else 0 for mark in _ENDS)
        if not cut and len(data) > self._limit:
            cut = len(data)
        whole, self._tail = data[:cut], data[cut:]
        self._done = self._done or whole.startswith(_DONE) or b"\n" + _DONE in whole
        return whole

    def rest(self) -> bytes:
        """The unfinished tail."""
        return self._tail
