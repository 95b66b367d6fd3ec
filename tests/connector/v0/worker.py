"""A V0 connector in a process of its own: a JSON call a line, a result a line. Knows no pytest.

`worker.py ours` runs this repository's connector, `worker.py original` that of vLLM 0.9.2, `worker.py installed` what
vLLM 0.9.2 makes with our plug-in, `worker.py raw` a client of the store and no connector.
"""

import base64
import dataclasses
import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from connector.v0.model import Batch, Geometry, empty_caches, fill, hidden_of_batch, tokens_of

# Lines of log that are warnings or worse, for tests that look for them.
_warnings: list[str] = []


class _Keeper(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _warnings.append(record.getMessage())


class Connector:
    """Calls to a connector."""

    def __init__(self, kind: str) -> None:
        self._is_ours = kind != "original"
        self._connector: Any = None
        self._geometry = Geometry()
        self._rank = 0
        self._make = _load(kind)
        # Where the constructor takes the class of its store from.
        self._store_home = (
            "mooncake_store_connector.v0.connector"
            if self._is_ours
            else "vllm.distributed.kv_transfer.kv_lookup_buffer.mooncake_store"
        )
        self._store: Any = None
        self._store_config: str | None = None

    def open(self, geometry: dict[str, Any], rank: int, local_rank: int, extra: dict[str, Any], name: str) -> str:
        """An empty text, or the error."""
        self._geometry, self._rank = Geometry(**geometry), rank
        config_path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if self._store is not None and self._store_config != config_path:
            self.close()
        try:
            with self._kept_store():
                self._connector = self._make(rank, local_rank, self._geometry.config(extra, name))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        self._store, self._store_config = self._connector.kv_store, config_path
        return ""

    @contextmanager
    def _kept_store(self) -> Iterator[None]:
        """A new connector gets the store client of the one before, its sums at zero: leaving a store takes a second."""
        if self._store is None:
            yield
            return
        if self._is_ours:
            self._store.counters = type(self._store.counters)()
        home = importlib.import_module(self._store_home)
        real, home.MooncakeStore = home.MooncakeStore, lambda *_: self._store  # type: ignore[attr-defined]
        try:
            yield
        finally:
            home.MooncakeStore = real  # type: ignore[attr-defined]

    def usable(self) -> bool:
        """Whether ours has joined its store. The original cannot tell."""
        return not self._is_ours or bool(self._connector.kv_store.is_usable)

    def environ(self, name: str, value: str | None) -> None:
        """Set a variable, or remove it, for the connectors that are opened from now on."""
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def keys(self, batch: dict[str, Any]) -> list[dict[str, str]]:
        """The two keys of each of a batch's sequences, with the rank and prefix of this connector."""
        one = _batch(batch)
        dtype = getattr(torch, one.token_dtype)
        tokens = [tokens_of(seed, length).to(dtype) for seed, length in one.prefills]
        keys = [self._connector._keyspace.keys_of(self._connector.tensor_hash(own)) for own in tokens]
        return [{"kv": pair.kv, "hidden": pair.hidden} for pair in keys]

    def has_process_group(self) -> bool:
        return bool(torch.distributed.is_initialized())

    def store_config(self) -> dict[str, Any]:
        """What was read from the config file."""
        return dataclasses.asdict(self._connector.kv_store.config)

    def send(self, batch: dict[str, Any], named: bool = False, rows: int | None = None) -> float:
        """Fill a cache and send it, with so many rows of hidden states; the seconds that sending took."""
        one = _batch(batch)
        caches = empty_caches(self._geometry, one)
        fill(self._geometry, one, caches, {seed for seed, _ in one.prefills}, self._rank)
        hidden: Any = hidden_of_batch(self._geometry, one)[:rows]
        if named:
            hidden = _named(hidden)
        begin = time.perf_counter()
        self._connector.send_kv_caches_and_hidden_states(self._geometry.executable(), one.input(), caches, hidden)
        return time.perf_counter() - begin

    def recv(self, batch: dict[str, Any], hits: list[int], named: bool = False) -> dict[str, Any]:
        """Receive into an empty cache, and compare all of it with what it should be if these seeds were hits."""
        one = _batch(batch)
        caches, wanted = empty_caches(self._geometry, one), empty_caches(self._geometry, one)
        fill(self._geometry, one, wanted, set(hits), self._rank)
        model_input = one.input()
        begin = time.perf_counter()
        states, bypass, returned = self._connector.recv_kv_caches_and_hidden_states(
            self._geometry.executable(), model_input, caches
        )
        seconds = time.perf_counter() - begin
        truth: Any = hidden_of_batch(self._geometry, one)
        return {
            "bypass": bypass,
            "caches_equal": all(_same_bits(*pair) for pair in zip(caches, wanted, strict=True)),
            "hidden": type(states).__name__ if states is not None else None,
            "hidden_module": type(states).__module__,
            "hidden_equal": states is not None and _equal_states(states, _named(truth) if named else truth),
            "same_input": returned is model_input,
            "seconds": seconds,
        }

    def put(self, key: str, shape: list[int], dtype: str, seed: int) -> None:
        """Put a tensor made from a seed."""
        self._connector.kv_store.put(key, _tensor(shape, dtype, seed))

    def put_none(self, key: str) -> None:
        self._connector.kv_store.put(key, None)

    def get(self, key: str, shape: list[int], dtype: str, seed: int) -> list[Any]:
        """The device of what is there and whether it is that tensor."""
        found = self._connector.kv_store.get(key)
        return [None] if found is None else [str(found.device), _same_bits(found, _tensor(shape, dtype, seed))]

    def get_numbers(self, key: str) -> list[Any]:
        """The device of what is there, and its elements."""
        found = self._connector.kv_store.get(key)
        return [str(found.device), found.tolist()]

    def hash(self, numbers: list[int], dtype: str) -> int:
        return int(self._connector.tensor_hash(torch.tensor(numbers, dtype=getattr(torch, dtype))))

    def counters(self) -> dict[str, float]:
        return dict(self._connector.kv_store.counters.snapshot())

    def warnings(self) -> list[str]:
        """Since the last call."""
        found = list(_warnings)
        _warnings.clear()
        return found

    def describe(self) -> dict[str, Any]:
        """What the connector is to those who hold it."""
        kind = type(self._connector)
        return {
            "module": kind.__module__,
            "name": kind.__name__,
            "attributes": sorted(name for name in vars(self._connector) if not name.startswith("_")),
            "local_tp_rank": self._connector.local_tp_rank,
        }

    def close(self) -> None:
        self._connector.close()
        self._store = None


class Raw:
    """Calls to Mooncake's client; bytes travel as base64."""

    def __init__(self) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()

    def setup(self, *arguments: Any) -> int:
        return int(self._store.setup(*arguments))

    def put(self, key: str, data: str) -> int:
        return int(self._store.put(key, base64.b64decode(data)))

    def get(self, key: str) -> str:
        return base64.b64encode(bytes(self._store.get(key))).decode()

    def size(self, key: str) -> int:
        return int(self._store.get_size(key))

    def exist(self, *keys: str) -> list[int]:
        return list(self._store.batch_is_exist(list(keys)))

    def remove(self, key: str) -> int:
        return int(self._store.remove(key, True))


def _load(kind: str) -> Any:
    logging.getLogger("vllm").addHandler(_Keeper(level=logging.WARNING))
    if kind in ("original", "installed"):
        program = importlib.import_module("connector.v0.original")
        return program.load() if kind == "original" else program.load_installed()
    return importlib.import_module("mooncake_store_connector.v0").MooncakeStoreConnector


def _batch(fields: dict[str, Any]) -> Batch:
    return Batch(**{**fields, "sequences": tuple((seed, length) for seed, length in fields["sequences"])})


def _named(hidden: torch.Tensor) -> Any:
    shim = importlib.import_module("mooncake_store_connector.v0").IntermediateTensors
    return shim({"hidden_states": hidden, "residual": hidden + 1})


def _equal_states(found: Any, truth: Any) -> bool:
    if isinstance(truth, torch.Tensor):
        return isinstance(found, torch.Tensor) and _same_bits(found, truth)
    return dict(found.items()).keys() == dict(truth.items()).keys() and all(
        _same_bits(tensor, truth[name]) for name, tensor in found.items()
    )


def _tensor(shape: list[int], dtype: str, seed: int) -> torch.Tensor:
    raw = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))
    return raw.to(getattr(torch, dtype))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(one.contiguous().flatten().view(torch.uint8).equal(other.contiguous().flatten().view(torch.uint8)))


def serve(make: Callable[[str], Any]) -> None:
    """Answer calls until standard input ends, with what `make` makes for the kind that the command line names."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    target = make(sys.argv[1])
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            answer = {"result": getattr(target, method)(*arguments)}
        except Exception as error:
            logging.getLogger("worker").exception("a call failed")
            answer = {"raised": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(lambda kind: Raw() if kind == "raw" else Connector(kind))
