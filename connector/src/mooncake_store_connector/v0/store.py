"""`kv_store`: tensors by key in a Mooncake store. Never raises for what the store does; counts it instead."""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from mooncake_store_connector.client import CONFIG_ENV, read_config
from mooncake_store_connector.codes import Outcome, judge
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.v0.blobs import BadBlobError
from mooncake_store_connector.v0.counts import Count
from mooncake_store_connector.v0.link import StoreLink
from mooncake_store_connector.v0.staging import Staging, StagingError
from mooncake_store_connector.v0.values import ALIGNMENT, Incoming, Outgoing, Part, read_value

logger = logging.getLogger("vllm.mooncake_store_connector.v0")

# What the config file's sizes are when it does not say: V0's own, not those of the other connector.
DEFAULTS: Final = {"global_segment_size": 3355443200, "local_buffer_size": 1073741824}
# A call that raised, or was not made.
_NO_CODE: Final = -1


class MooncakeStore:
    """A client of the store that the file at `MOONCAKE_CONFIG_PATH` names.

    The file has the keys of vLLM 0.9: `local_hostname`, `metadata_server`, `master_server_address`,
    `global_segment_size` (default 3355443200 bytes, what this worker lends), `local_buffer_size` (default 1073741824
    bytes), `protocol` (default `tcp`), `device_name` (default empty). `config` is what was read, `device` this rank's
    device, `counters.snapshot()` the sums by the names of `Count`. Raises ConfigError, a ValueError, for a file that
    cannot be used.

    Without a store to join, every get is a miss and every put fails, at once, until there is one.
    """

    def __init__(self, config: Any, local_rank: int = 0) -> None:
        self.config = read_config(Path(os.environ[CONFIG_ENV]), DEFAULTS)
        self.device = choose_device(config, local_rank)
        self.counters = Counters()
        self._link = StoreLink(self.config)
        self._lock = threading.RLock()
        self._staging: Staging | None = None

    # -- what the connector's users know ------------------------------------------------------------------------------

    def put(self, key: str, value: torch.Tensor | None) -> None:
        """Store a tensor of any shape and device.

        Nothing happens for None, or if the key is there already. A put that fails is logged and counted. Raises
        TypeError for a dtype that safetensors does not have.
        """
        if value is not None:
            self.write({key: Outgoing.of_tensor(Part.of(value), value.device)})

    def get(self, key: str) -> torch.Tensor | None:
        """The tensor stored under a key, on this rank's device; None if there is none, or none that can be read."""
        with self._lock:
            value = self.read(key)
            if value is None or value.tensor is None:
                return None
            return value.tensor.to(self.device, copy=True)

    def close(self) -> None:
        """Leave the store and free its client, segment and buffers. A second call does nothing."""
        with self._lock:
            client = self._link.close()
            if self._staging is not None:
                self._staging.close()
                self._staging = None
        if client is not None:
            client.close()

    @property
    def is_usable(self) -> bool:
        """Whether calls go to the store now: it has been joined, and is not left alone for not answering."""
        return self._link.client() is not None

    # -- what the connector uses --------------------------------------------------------------------------------------

    def has_all(self, *keys: str) -> bool:
        """Whether all these keys are there. False when the store does not tell."""
        with self._lock:
            client = self._link.client()
            return client is not None and self._call(len(keys), client.batch_is_exist, list(keys)) == [1] * len(keys)

    def write(self, values: Mapping[str, Outgoing]) -> bool:
        """Store several values in one go. Whether the store has all of them now."""
        sizes = {key: value.layout.size for key, value in values.items()}
        with self._lock:
            client = self._link.client()
            codes = self._write(client, values) if client is not None else [_NO_CODE] * len(values)
        failed = {key: code for key, code in zip(values, codes, strict=True) if code != 0}
        self.counters.add(Count.PUT_VALUES, len(values) - len(failed))
        self.counters.add(Count.PUT_BYTES, sum(size for key, size in sizes.items() if key not in failed))
        self.counters.add(Count.PUT_FAILURES, len(failed))
        if failed and client is not None:
            logger.warning("Storing failed: %s", ", ".join(f"{key} with code {code}" for key, code in failed.items()))
        return not failed

    def read(self, key: str, lead: int = 0) -> Incoming | None:
        """The value under a key, until the next call of this object: it lies in memory that is used again.

        `lead` bytes are left before it, so that what follows its header is aligned. A value that is not whole is taken
        out of the store, so that the next put of its key replaces it.
        """
        with self._lock:
            client = self._link.client()
            if client is None:
                self.counters.add(Count.GET_FAILURES)
                return None
            memory = self._fetch(client, key, lead)
            if memory is None:
                return None
            try:
                return read_value(memory)
            except BadBlobError as error:
                self.discard([key], f"it is not a whole value: {error}")
                return None

    def discard(self, keys: Sequence[str], why: str) -> None:
        """Take values out of the store that can never be right."""
        logger.warning("Removing %s from the store: %s", ", ".join(keys), why)
        self.counters.add(Count.BAD_VALUES, len(keys))
        client = self._link.client()
        if client is None:
            return
        for key in keys:
            # Forced: reading has just leased the key.
            if self._call(1, client.remove, key, True) == [0]:
                self.counters.add(Count.REMOVED_VALUES)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _write(self, client: Any, values: Mapping[str, Outgoing]) -> list[int]:
        """A code for each value. One buffer holds all of them, each aligned."""
        places, end = [], 0
        for value in values.values():
            begin = -(-end // ALIGNMENT) * ALIGNMENT + value.lead
            end = begin + value.layout.size
            places.append((begin, end))
        memory = self._take(client, end)
        if memory is None:
            return [_NO_CODE] * len(values)
        for value, (begin, end) in zip(values.values(), places, strict=True):
            value.write(memory[begin:end])
        addresses = [memory.data_ptr() + begin for begin, _ in places]
        return self._call(
            len(values), client.batch_put_from, list(values), addresses, [end - begin for begin, end in places]
        )

    def _fetch(self, client: Any, key: str, lead: int) -> torch.Tensor | None:
        """The bytes under a key, in the staging memory; None, counted, if they are not there or do not come."""
        size = self._call(1, client.get_size, key)[0]
        if judge(size) is Outcome.MISS:
            self.counters.add(Count.GET_MISSES)
            return None
        memory = self._take(client, lead + size) if size >= 0 else None
        if memory is None:
            self._note_failure(key, size)
            return None
        code = self._call(1, client.get_into, key, memory.data_ptr() + lead, size)[0] if size else 0
        if code == size:
            self.counters.add(Count.GET_VALUES)
            self.counters.add(Count.GET_BYTES, size)
            return memory[lead : lead + size]
        if judge(code) is Outcome.POISON:
            self.discard([key], f"the store cannot read it: code {code}")
        else:
            self._note_failure(key, code)
        return None

    def _note_failure(self, key: str, code: int) -> None:
        self.counters.add(Count.GET_FAILURES)
        logger.warning("Reading %s failed with code %s", key, code)

    def _take(self, client: Any, size: int) -> torch.Tensor | None:
        if self._staging is None:
            self._staging = Staging(client, pinned=self.device.type == "cuda")
        try:
            return self._staging.take(size)
        except StagingError as error:
            logger.warning("%s", error)
            return None

    def _call(self, count: int, method: Callable[..., Any], *arguments: Any) -> list[int]:
        """The `count` codes of a call. Tells the link whether the store answered."""
        try:
            answer = method(*arguments)
        except Exception:
            logger.exception("The store's client failed")
            return [_NO_CODE] * count
        codes = [int(code) for code in answer] if isinstance(answer, (list, tuple)) else [int(answer)]
        lost = any(judge(code) is Outcome.UNREACHABLE for code in codes)
        self._link.report(Outcome.UNREACHABLE if lost else Outcome.OK)
        return codes if len(codes) == count else [_NO_CODE] * count


def choose_device(config: Any, local_rank: int) -> torch.device:
    """The rank's device: what vLLM's config names, with this rank's index; else CUDA if there is any."""
    named = getattr(getattr(config, "device_config", None), "device_type", None)
    kind = named if isinstance(named, str) else ("cuda" if torch.cuda.is_available() else "cpu")
    if kind != "cuda" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank if local_rank < torch.cuda.device_count() else torch.cuda.current_device())
