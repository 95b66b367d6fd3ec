"""One arm of the V0 benchmark in a process of its own: a connector, or Mooncake's client alone.

Caches and hidden states are made once; a run has new tokens, and with them new keys. Times are those of the call alone.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from connector.v0.model import Batch, empty_caches, fill, hidden_of_batch
from connector.v0.worker import Connector, Raw, serve


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds that a call took, and its result."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


class ConnectorArm(Connector):
    """A connector, ours or the original."""

    def prepare(self, tokens: int, block_size: int) -> None:
        """Make a sequence's caches and hidden states."""
        self._batch = Batch(((1, tokens),), block_size=block_size, slots_seed=3)
        self._caches = empty_caches(self._geometry, self._batch)
        fill(self._geometry, self._batch, self._caches, {1})
        self._hidden = hidden_of_batch(self._geometry, self._batch)
        self._model = self._geometry.executable()

    def _input(self, seed: int) -> Any:
        model_input = self._batch.input()
        model_input.input_tokens[0], model_input.input_tokens[1] = divmod(seed, 30000)
        return model_input

    def time_send(self, seed: int) -> float:
        """Send the sequence under new tokens; seconds."""
        one, send = self._input(seed), self._connector.send_kv_caches_and_hidden_states
        return timed(lambda: send(self._model, one, self._caches, self._hidden))[0]

    def time_recv(self, seed: int) -> float:
        """Receive it; seconds. Fails if it is not a hit, so that no miss is taken for a fast receive."""
        one, recv = self._input(seed), self._connector.recv_kv_caches_and_hidden_states
        seconds, (hidden, bypass, _) = timed(lambda: recv(self._model, one, self._caches))
        assert bypass
        assert torch.equal(hidden, self._hidden)
        return seconds

    def sizes(self) -> list[int]:
        """The bytes of its tensors: KV, hidden states."""
        kv = 2 * len(self._geometry.stage_layers) * self._geometry.heads * self._geometry.head_size
        return [kv * len(self._hidden) * self._caches[0].element_size(), self._hidden.nbytes]


class RawArm(Raw):
    """The same bytes by `put_from` and `get_into`, from and to one registered buffer."""

    def prepare(self, sizes: list[int]) -> None:
        """Make the buffer."""
        self._sizes = sizes
        self._buffer = torch.randint(0, 255, (sum(sizes),), dtype=torch.uint8)
        assert self._store.register_buffer(self._buffer.data_ptr(), sum(sizes)) == 0

    def _places(self, seed: int) -> list[tuple[str, int, int]]:
        address, size = self._buffer.data_ptr(), self._sizes[0]
        return [(f"raw-{seed}-kv", address, size), (f"raw-{seed}-hidden", address + size, self._sizes[1])]

    def time_send(self, seed: int) -> float:
        """Put both values; seconds."""
        seconds, codes = timed(lambda: [self._store.put_from(*place) for place in self._places(seed)])
        assert codes == [0, 0]
        return seconds

    def time_recv(self, seed: int) -> float:
        """Get both values; seconds."""
        seconds, counts = timed(lambda: [self._store.get_into(*place) for place in self._places(seed)])
        assert counts == self._sizes
        return seconds

    def clear(self) -> int:
        """Remove all values, so that the store does not fill; how many there were."""
        return int(self._store.remove_all(True))


if __name__ == "__main__":
    serve(lambda kind: RawArm() if kind == "raw" else ConnectorArm(kind))
