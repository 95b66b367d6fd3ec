"""The worker's side: copies blocks to and from memory that it shares with the agent. Copies are all that it does.

Blocks to be stored are gathered at the end of the step that filled them, so that the engine may reuse them at once.
Blocks to be loaded lie proven in the shared memory before vLLM hears of them, and are scattered before the step that
reads them.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.agent.arena import Arena, slot_size_for
from mooncake_store_connector.agent.channel import Channel, ChannelClosedError
from mooncake_store_connector.agent.launch import AgentProcess
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.frames import TRAILER
from mooncake_store_connector.groups import Shape
from mooncake_store_connector.v1.copies import Copies, copies_for
from mooncake_store_connector.v1.layout import GroupLayout
from mooncake_store_connector.v1.plans import LoadPlan, SavePlan, StepPlan
from mooncake_store_connector.v1.ring import Ring
from mooncake_store_connector.v1.settings import Settings

logger = logging.getLogger("vllm.mooncake_store_connector")

_CONNECT_SECONDS: Final = 0.1
_KEEP_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.001
# Memory of so many agents is kept: a plan may be under way for that of one that has just gone.
_KEPT: Final = 3


@dataclass(frozen=True)
class Rank:
    """Which part of the model this worker has. `name` is part of its keys, `count` the number of all ranks."""

    name: str
    count: int
    starts_agent: bool


@dataclass
class _Connection:
    """The agent as it is now: a channel, and memory shared over it."""

    channel: Channel
    arena: Arena
    copies: Copies
    ring: Ring


class StoreWorker:
    """One per rank, used by its worker's thread; one more keeps the agent running and connected."""

    def __init__(
        self,
        agent: str,
        namespace: str,
        descriptor: str,
        rank: Rank,
        shape: Shape,
        layouts: Sequence[GroupLayout],
        arena_bytes: int,
        settings: Settings,
        role: str,
    ) -> None:
        """`arena_bytes` bounds the memory shared with the agent; `role` is vLLM's kv_role."""
        self._agent = agent
        self._layouts = layouts
        self._settings = settings
        self._slot_size = slot_size_for(max(layout.payload for layout in layouts), TRAILER)
        self._slots = max(2, arena_bytes // self._slot_size)
        # Half for each direction, or all for the only one.
        shares = {"kv_producer": self._slots, "kv_consumer": 0}
        self._save_slots = shares.get(role, self._slots // 2)
        self._hello = m.HelloWorker(
            namespace,
            rank.name,
            rank.count,
            self._slot_size,
            self._slots,
            self._save_slots,
            [layout.payload for layout in layouts],
            [(group.block_tokens, group.window or 0) for group in shape.groups],
            shape.unit,
            shape.hash_tokens,
            descriptor,
        )
        self._process = AgentProcess(agent) if rank.starts_agent else None
        self._connection: _Connection | None = None
        self._memories: dict[str, _Connection] = {}
        self._epoch = 0
        self._is_usable = False
        self._is_stuck = False
        self._patience = 0.0
        self._failed: set[int] = set()
        self._dropped: dict[str, int] = {}
        self._counters = Counters()
        self._closed = threading.Event()
        threading.Thread(target=self._keep_connected, name="store-agent-keeper", daemon=True).start()

    def _keep_connected(self) -> None:
        """Start the agent and connect to it, also while the engine has nothing to do and no step is taken."""
        while not self._closed.is_set():
            if self._process is not None:
                self._process.keep_alive()
            if self._connection is None:
                self._connect()
            self._closed.wait(_CONNECT_SECONDS if self._connection is None else _KEEP_SECONDS)

    def poll(self) -> None:
        """Take what the agent has said."""
        if self._connection is not None:
            try:
                for message in self._connection.channel.receive():
                    self._take(message)
            except ChannelClosedError:
                self._lose()

    def load(self, plan: StepPlan) -> None:
        """Copy what was loaded into the engine's blocks."""
        self.poll()
        for one in plan.loads:
            connection = self._memories.get(one.agent)
            if connection is None:
                self._fail(one)
                continue
            self._scatter(connection, one)
            if connection is self._connection:
                self._say(m.Freed(one.freed))

    def take_failed(self) -> set[int]:
        """Blocks that should have been loaded since the last call, and were not."""
        failed, self._failed = self._failed, set()
        return failed

    def take_dropped(self) -> dict[str, int]:
        """Requests of which blocks were not handed over since the last call, and how many tokens come before those."""
        dropped, self._dropped = self._dropped, {}
        return dropped

    def save(self, plan: StepPlan) -> None:
        """Hand over what is to be stored."""
        self.poll()
        self._patience = self._settings.save_wait_ms / 1000
        for one in plan.saves:
            if not self._save(one):
                self._dropped[one.request] = min(one.start, self._dropped.get(one.request, one.start))

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last call."""
        return self._counters.take()

    def close(self) -> None:
        """Leave the agent, and end it if it is ours."""
        self._closed.set()
        if self._connection is not None:
            self._connection.channel.close()
            self._connection = None
        if self._process is not None:
            self._process.stop()

    # -- copies -------------------------------------------------------------------------------------------------------

    def _fail(self, plan: LoadPlan) -> None:
        """Memory is kept for as long as a plan for it may come; should one come later, its blocks are computed."""
        logger.warning("KV was offered from the memory of agent %s, which is gone; it is computed", plan.agent)
        self._failed.update(plan.blocks)
        self._counters.add("misses_memory_gone", len(plan.blocks))

    @staticmethod
    def _scatter(connection: _Connection, plan: LoadPlan) -> None:
        for group in sorted(set(plan.groups)):
            chosen = [index for index, one in enumerate(plan.groups) if one == group]
            blocks = [plan.blocks[index] for index in chosen]
            connection.copies.scatter(group, blocks, [plan.slots[index] for index in chosen])

    def _save(self, plan: SavePlan) -> bool:
        """Hand over as much as there is room for: blocks at a prompt's start are worth more. Whether that was all."""
        done = 0
        while done < len(plan.blocks):
            if self._connection is None or not self._is_usable:
                return False
            group = plan.groups[done]
            end = next((i for i in range(done, len(plan.groups)) if plan.groups[i] != group), len(plan.groups))
            first, taken = self._connection.ring.take(min(end - done, m.SLICE))
            if taken:
                blocks = plan.blocks[done : done + taken]
                self._connection.copies.gather(group, blocks, first)
                self._say(m.Save(first, [group] * taken, plan.hashes[done : done + taken]))
                done += taken
            elif not self._wait_for_room():
                self._counters.add("drops_no_room", len(plan.blocks) - done)
                return False
        return True

    def _wait_for_room(self) -> bool:
        """Wait for a free slot, out of the step's patience. Where it ends in vain, no later step waits until one is."""
        started = time.monotonic()
        while not self._is_stuck and self._connection is not None and self._connection.ring.free == 0:
            if time.monotonic() - started >= self._patience or not self._is_usable:
                self._is_stuck = True
                logger.info("The store takes KV more slowly than this engine makes it; some of it is not stored")
                break
            time.sleep(_POLL_SECONDS)
            self.poll()
        waited = time.monotonic() - started
        self._patience -= waited
        self._counters.add("save_wait_seconds", waited)
        return self._connection is not None and self._connection.ring.free > 0

    # -- the agent ----------------------------------------------------------------------------------------------------

    def _take(self, message: m.Message) -> None:
        match message:
            case m.State(is_usable, _, _, agent, epoch, _):
                self._is_usable = is_usable
                self._epoch = max(self._epoch, epoch)
                self._remember(agent)
            case m.Saved(count):
                self._is_stuck = False
                if self._connection is not None:
                    self._connection.ring.release(count)

    def _remember(self, agent: str) -> None:
        """The connection is to this agent: plans name the memory by it."""
        if self._connection is not None:
            self._memories[agent] = self._connection
            for oldest in list(self._memories)[:-_KEPT]:
                del self._memories[oldest]

    def _say(self, message: m.Message) -> None:
        if self._connection is not None:
            try:
                self._connection.channel.send(message)
            except ChannelClosedError:
                self._lose()

    def _connect(self) -> None:
        """Share new memory with the agent. Its predecessor's may still be read from."""
        try:
            channel = Channel.connect(self._agent)
        except OSError:
            return
        arena, descriptor = Arena.create(self._slot_size, self._slots)
        try:
            # An agent knows of no reset before its time.
            channel.send(msgspec.structs.replace(self._hello, epoch=self._epoch), descriptor)
        except ChannelClosedError:
            channel.close()
            return
        finally:
            os.close(descriptor)
        self._connection = _Connection(channel, arena, copies_for(self._layouts, arena), Ring(self._save_slots))

    def _lose(self) -> None:
        if self._connection is not None:
            self._connection.channel.close()
        self._is_usable = False
        # Last: from here on the keeper may put a new one there.
        self._connection = None
        logger.warning("The store agent is gone; serving without it until it is back")
