"""The agent's main loop: takes messages, keeps what it knows of each request, and sends what its threads found.

All state of requests belongs to this one thread. Other threads leave their results in a queue and wake it.
"""

import contextlib
import logging
import os
import queue
import selectors
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.agent.channel import Channel, ChannelClosedError, is_ours
from mooncake_store_connector.agent.ledger import Ledger
from mooncake_store_connector.agent.link import StoreLink
from mooncake_store_connector.agent.loading import Load, Loader
from mooncake_store_connector.agent.lookups import Lookup, Lookups
from mooncake_store_connector.agent.objects import BadKeys, Names
from mooncake_store_connector.agent.saving import Job, Piece, Saver
from mooncake_store_connector.agent.search import Place, Search
from mooncake_store_connector.agent.threads import give_way
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.groups import Group, Shape

logger = logging.getLogger("mooncake_store_connector")

_TICK: Final = 0.1
_SHORT_TICK: Final = 0.002
_TOTALS_SECONDS: Final = 1.0
_LOAD_THREADS: Final = 2
_PROMISE_SHARE: Final = 0.8


@dataclass
class _Request:
    """A prompt: its hashes as far as they came, its lookup, and its load."""

    total: int
    promised: int
    seconds: float
    started: float
    hashes: list[bytes]
    computed: int | None = None
    found: int | None = None
    lookup: Lookup | None = None
    goal: int = 0
    places: list[Place] = field(default_factory=list)
    load: Load | None = None
    is_loaded: bool = False
    held: list[int] = field(default_factory=list)


@dataclass
class _Engine:
    """What works for the engine once all its ranks have come."""

    link: StoreLink
    names: Names
    shape: Shape
    lookups: Lookups
    loader: Loader
    saver: Saver
    pool: ThreadPoolExecutor


class Server:
    """One engine's agent. `run` returns when the engine is gone."""

    def __init__(self, listener: socket.socket, config_path: Path, parent: int) -> None:
        """`parent` is a pipe's end that closes when the engine's process ends."""
        self._listener = listener
        self._config_path = config_path
        self._parent = parent
        self._id = uuid.uuid4().hex
        self._selector = selectors.DefaultSelector()
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waker, self._woken = socket.socketpair()
        self._counters = Counters()
        self._bad = BadKeys()
        self._ledger = Ledger(self._counters)
        self._strangers: list[Channel] = []
        self._scheduler: Channel | None = None
        self._workers: dict[str, Channel] = {}
        self._hellos: dict[str, m.HelloWorker] = {}
        self._arenas: dict[str, Arena] = {}
        self._engine: _Engine | None = None
        self._requests: dict[str, _Request] = {}
        self._free: list[int] = []
        self._room = 0
        self._queue: deque[str] = deque()
        self._readers: dict[int, int] = {}
        self._totals: Mapping[str, float] = {}
        self._totals_at = 0.0
        self._is_reset = False
        self._is_over = False

    def run(self) -> None:
        """Serve until the engine is gone."""
        for file, act in ((self._listener, self._accept), (self._woken, self._wake_up)):
            file.setblocking(False)
            self._selector.register(file, selectors.EVENT_READ, act)
        self._waker.setblocking(False)
        self._selector.register(self._parent, selectors.EVENT_READ, self._parent_ended)
        while not self._is_over:
            for key, _ in self._selector.select(_SHORT_TICK if self._flush() else _TICK):
                key.data()
            if self._engine is not None:
                self._engine.link.watch()
                self._tell_totals()
                self._tell_news()

    def close(self) -> None:
        """Leave the store."""
        if self._engine is not None:
            self._engine.link.close()

    # -- connections --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connected, _ = self._listener.accept()
            if not is_ours(connected):
                logger.warning("A stranger's connection was refused")
                connected.close()
                return
            channel = Channel(connected)
            self._strangers.append(channel)
            self._selector.register(channel, selectors.EVENT_READ, partial(self._read, channel))

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        while not self._results.empty():
            self._results.get()()

    def _parent_ended(self) -> None:
        if not os.read(self._parent, 4096):
            self._is_over = True

    def _post(self, act: Callable[[], None]) -> None:
        """Let the main loop do something soon. Called from any thread."""
        self._results.put(act)
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b"x")

    def _read(self, channel: Channel) -> None:
        try:
            for message, descriptor in channel.receive_with_descriptors():
                self._take(channel, message, descriptor)
        except ChannelClosedError:
            self._lose(channel)

    def _lose(self, channel: Channel) -> None:
        """An engine whose scheduler or worker is gone ends, and so does its agent."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(channel)
        channel.close()
        if channel in self._strangers:
            self._strangers.remove(channel)
        else:
            self._is_over = True

    def _flush(self) -> bool:
        """Send what waits. Whether something still waits for room."""
        for channel in (self._scheduler, *self._workers.values()):
            if channel is not None and channel.has_waiting:
                try:
                    channel.flush()
                except ChannelClosedError:
                    self._lose(channel)
        return any(
            channel is not None and channel.has_waiting for channel in (self._scheduler, *self._workers.values())
        )

    def _send(self, channel: Channel | None, message: m.Message) -> None:
        if channel is not None:
            try:
                channel.send(message)
            except ChannelClosedError:
                self._lose(channel)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _take(self, channel: Channel, message: m.Message, descriptor: int | None) -> None:
        match message:
            case m.Ask():
                self._ask(message)
            case m.More(request, hashes):
                self._more(request, hashes)
            case m.Want(request, computed):
                self._want(request, computed)
            case m.Drop(request):
                self._drop(request)
            case m.HandOver(request):
                self._hand_over(request)
            case m.Save():
                self._save(channel, message)
            case m.Freed(slots):
                self._freed(slots)
            case m.Reset():
                self._reset()
            case m.HelloScheduler(wants_news):
                self._strangers.remove(channel)
                self._scheduler = channel
                self._ledger.is_wanted = wants_news
                self._tell_state()
            case m.HelloWorker():
                self._hello_worker(channel, message, descriptor)
            case _:
                raise ChannelClosedError(f"nobody sends {type(message).__name__} to an agent")

    def _hello_worker(self, channel: Channel, hello: m.HelloWorker, descriptor: int | None) -> None:
        if descriptor is None or hello.rank in self._workers:
            raise ChannelClosedError(f"a second worker of rank {hello.rank}, or one without memory")
        self._arenas[hello.rank] = Arena(descriptor, hello.slot_size, hello.slots)
        os.close(descriptor)
        self._strangers.remove(channel)
        self._workers[hello.rank] = channel
        self._hellos[hello.rank] = hello
        if len(self._workers) == hello.ranks:
            self._engine = self._start_engine()
        self._tell_state()

    def _start_engine(self) -> _Engine:
        """All ranks are here. They must agree on what is stored."""
        ranks = tuple(sorted(self._hellos))
        hellos = [self._hellos[rank] for rank in ranks]
        first = hellos[0]
        if any((one.namespace, one.groups, one.unit) != (first.namespace, first.groups, first.unit) for one in hellos):
            raise ChannelClosedError("the ranks of this engine do not agree on what they store")
        arenas = [self._arenas[rank] for rank in ranks]
        link = StoreLink(
            self._config_path,
            first.namespace,
            first.descriptor,
            arenas,
            lambda: self._post(self._tell_state),
            self._ledger.begin_life,
            self._counters,
            max(one.epoch for one in hellos),
        )
        if self._is_reset:
            link.reset()
        self._ledger.ranks = len(ranks)
        names = Names(first.namespace, ranks)
        shape = Shape(
            tuple(Group(size, window or None) for size, window in first.groups), first.unit, first.hash_tokens
        )
        self._free = list(range(max(one.save_slots for one in hellos), min(one.slots for one in hellos)))
        self._room = len(self._free)
        notes = (self._bad, self._ledger, self._counters)
        engine = _Engine(
            link,
            names,
            shape,
            Lookups(link, names, *notes, lambda found: self._post(partial(self._looked_up, found))),
            Loader(link, names, arenas, [one.payloads for one in hellos], *notes),
            Saver(
                link,
                *notes,
                freed=lambda rank, count: self._post(partial(self._saved, rank, count)),
                changed=lambda: self._post(self._tell_state),
            ),
            ThreadPoolExecutor(_LOAD_THREADS, thread_name_prefix="store-load", initializer=give_way),
        )
        link.start()
        engine.lookups.start()
        engine.saver.start()
        return engine

    # -- prompts ------------------------------------------------------------------------------------------------------

    def _ask(self, ask: m.Ask) -> None:
        self._requests[ask.request] = _Request(
            ask.total, ask.promised_tokens, ask.seconds, time.monotonic(), list(ask.hashes)
        )
        self._look_up(ask.request)

    def _more(self, name: str, hashes: list[bytes]) -> None:
        if (request := self._requests.get(name)) is not None:
            request.hashes += hashes
            self._look_up(name)

    def _look_up(self, name: str) -> None:
        """Start the lookup once all hashes are there."""
        request, engine = self._requests[name], self._engine
        if len(request.hashes) < request.total or request.lookup is not None:
            return
        if engine is None or not engine.link.is_usable:
            self._found(name, 0)
            return
        limit = request.total * engine.shape.hash_tokens // engine.shape.unit * engine.shape.unit
        request.lookup = Lookup(
            name,
            Search(engine.shape, limit, request.promised),
            request.hashes,
            engine.link.epoch,
            request.started,
            request.started + _PROMISE_SHARE * request.seconds,
        )
        self._counters.add("lookups")
        engine.lookups.add(request.lookup)

    def _looked_up(self, lookup: Lookup) -> None:
        request = self._requests.get(lookup.request)
        if request is not None and request.lookup is lookup:
            self._found(lookup.request, lookup.search.found)

    def _found(self, name: str, tokens: int) -> None:
        self._requests[name].found = tokens
        self._send(self._scheduler, m.Stored(name, tokens))
        self._load(name)

    def _want(self, name: str, computed: int) -> None:
        if (request := self._requests.get(name)) is not None and request.computed is None:
            request.computed = computed
            self._load(name)

    def _load(self, name: str) -> None:
        """Start the load once it is known what there is and what is wanted of it."""
        request, engine = self._requests[name], self._engine
        if request.found is None or request.computed is None or request.load is not None:
            return
        computed = request.computed
        if engine is None or request.found <= computed:
            self._send(self._scheduler, m.Ready(name, min(request.found, computed)))
            return
        request.goal = self._fitting(engine.shape, request.found, computed)
        request.places = engine.shape.needed(request.goal, computed)
        if not self._start_load(name, request, engine):
            # Others have the slots now: it has its turn when they are done, unless its request has had enough of it.
            self._queue.append(name)

    def _start_load(self, name: str, request: _Request, engine: _Engine) -> bool:
        """Start a planned load if there are slots for it."""
        count = len(request.places)
        if count > len(self._free):
            return False
        request.held, self._free = self._free[:count], self._free[count:]
        hashes = [request.hashes[engine.shape.hash_index(*place)] for place in request.places]
        request.load = Load(name, request.places, hashes, request.held, engine.link.epoch)
        engine.pool.submit(self._run_load, engine, request.load, request.goal)
        return True

    def _fitting(self, shape: Shape, tokens: int, computed: int) -> int:
        """The longest prefix whose blocks fit into host memory at all."""
        if len(shape.needed(tokens, computed)) <= self._room:
            return tokens
        self._counters.add("loads_cut_by_memory")
        low, high = computed // shape.unit, tokens // shape.unit
        while high - low > 1:
            middle = (low + high) // 2
            fits = len(shape.needed(middle * shape.unit, computed)) <= self._room
            low, high = (middle, high) if fits else (low, middle)
        return max(low * shape.unit, computed)

    def _run_load(self, engine: _Engine, load: Load, tokens: int) -> None:
        engine.loader.run(load, lambda place: engine.shape.groups[place[0]].window is None)
        self._post(partial(self._loaded, engine, load, tokens))

    def _loaded(self, engine: _Engine, load: Load, tokens: int) -> None:
        request = self._requests.get(load.request)
        if request is None or request.load is not load:
            self._release(load.slots)
            return
        request.is_loaded = True
        computed = request.computed or 0
        is_current = load.epoch == engine.link.epoch
        proven: Callable[[int, int], bool] = lambda group, block: is_current and (group, block) in load.proven  # noqa: E731
        length = engine.shape.longest(tokens, computed, proven)
        kept = set(engine.shape.needed(length, computed)) if length > computed else set()
        slots = dict(zip(load.places, load.slots, strict=True))
        self._release([slot for place, slot in slots.items() if place not in kept])
        request.held = [slots[place] for place in kept]
        self._tell_slots(load.request, {place: slots[place] for place in load.places if place in kept})
        self._send(self._scheduler, m.Ready(load.request, length))

    def _tell_slots(self, name: str, slots: Mapping[Place, int]) -> None:
        places = list(slots)
        for start in range(0, len(places), m.SLICE):
            part = places[start : start + m.SLICE]
            message = m.Slots(
                name, [group for group, _ in part], [block for _, block in part], [slots[p] for p in part]
            )
            self._send(self._scheduler, message)

    def _drop(self, name: str) -> None:
        """Forget a request. A load under way keeps its slots until it has ended."""
        request = self._requests.pop(name, None)
        if request is None:
            return
        if request.lookup is not None:
            request.lookup.is_dropped = True
        if request.load is not None and not request.is_loaded:
            # Its slots are still written to: `_loaded` releases them.
            request.load.cancelled.set()
        else:
            self._release(request.held)

    def _hand_over(self, name: str) -> None:
        request = self._requests.pop(name, None)
        if request is not None:
            self._readers.update(dict.fromkeys(request.held, len(self._workers)))

    def _freed(self, slots: list[int]) -> None:
        """A rank has read slots; they are free when all ranks have."""
        for slot in slots:
            left = self._readers.get(slot, 0) - 1
            if left > 0:
                self._readers[slot] = left
            elif self._readers.pop(slot, None) is not None:
                self._free.append(slot)
        self._load_queued()

    def _release(self, slots: list[int]) -> None:
        self._free.extend(slots)
        self._load_queued()

    def _load_queued(self) -> None:
        """Give free slots to whoever waits for them, in order."""
        while self._queue and self._engine is not None:
            name = self._queue[0]
            request = self._requests.get(name)
            if request is not None and not self._start_load(name, request, self._engine):
                return
            self._queue.popleft()

    # -- saves and the rest -------------------------------------------------------------------------------------------

    def _save(self, channel: Channel, save: m.Save) -> None:
        rank = next((rank for rank, worker in self._workers.items() if worker is channel), None)
        engine = self._engine
        if rank is None:
            raise ChannelClosedError("a save by a stranger")
        if engine is None:
            self._send(channel, m.Saved(len(save.groups)))
            return
        hello, arena = self._hellos[rank], self._arenas[rank]
        pieces = [
            Piece(
                arena,
                save.first_slot + offset,
                hello.payloads[group],
                engine.names.key(engine.link.epoch, rank, group, block_hash),
            )
            for offset, (group, block_hash) in enumerate(zip(save.groups, save.hashes, strict=True))
        ]
        engine.saver.add(Job(engine.names.ranks.index(rank), pieces, time.monotonic()))

    def _saved(self, rank: int, count: int) -> None:
        if self._engine is not None:
            self._send(self._workers.get(self._engine.names.ranks[rank]), m.Saved(count))

    def _reset(self) -> None:
        """What workers have sent so far belongs to the old epoch, and so does every load under way."""
        for channel in list(self._workers.values()):
            self._read(channel)
        for name in list(self._requests):
            self._send(self._scheduler, m.Ready(name, 0))
            self._drop(name)
        self._is_reset = True
        if self._engine is not None:
            self._ledger.end_epoch(self._engine.link.epoch)
            self._engine.link.reset()

    def _tell_state(self) -> None:
        engine = self._engine
        if engine is None:
            state = m.State(is_usable=False, why="not all ranks are here", namespace="", agent=self._id)
        else:
            link = engine.link
            state = m.State(
                link.is_usable, link.why, engine.names.namespace, self._id, link.epoch, engine.saver.is_full
            )
        for channel in (self._scheduler, *self._workers.values()):
            self._send(channel, state)

    def _tell_totals(self) -> None:
        now = time.monotonic()
        if now < self._totals_at + _TOTALS_SECONDS:
            return
        totals = self._counters.snapshot()
        if totals != self._totals:
            self._totals, self._totals_at = totals, now
            self._send(self._scheduler, m.Totals(dict(totals)))

    def _tell_news(self) -> None:
        """As much as the socket takes: an engine without requests reads nothing, and its answers come after this."""
        scheduler = self._scheduler
        while scheduler is not None and not scheduler.has_waiting and (news := self._ledger.take()) is not None:
            self._send(scheduler, news)
