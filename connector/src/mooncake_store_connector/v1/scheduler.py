"""The scheduler's side: asks the agent about new prompts, offers what is proven in host memory, plans loads and saves.

Nothing here waits. The agent is spoken to over a socket that never blocks, and a prompt that it has not answered costs
a look into a dictionary. A request is offered KV only once its blocks lie proven in host memory on all ranks; the copy
that follows is local and cannot fail, so nothing of vLLM's handling of failed loads is ever needed.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.agent.channel import Channel, ChannelClosedError
from mooncake_store_connector.counters import Counters
from mooncake_store_connector.groups import Shape
from mooncake_store_connector.handoff import Hint, build_hint, build_params, is_asked_for, read_hint, tokens_to_wait_for
from mooncake_store_connector.v1.budget import Pace, Wait
from mooncake_store_connector.v1.events import Events, Words
from mooncake_store_connector.v1.plans import LoadPlan, SavePlan, StepPlan
from mooncake_store_connector.v1.settings import Settings

logger = logging.getLogger("vllm.mooncake_store_connector")

_RECONNECT_SECONDS: Final = 0.2
# An agent that has said nothing for so long since it was asked hangs. A busy one may be slower than a short budget.
_SILENT_SECONDS: Final = 0.5
_ENDED: Final = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")


@dataclass
class _Prompt:
    """A request that may still be offered KV."""

    request: Any
    hashes_total: int
    asks: int = 0
    """How often the agent was asked. Answers name the ask: those to an earlier one are of no use."""
    is_asked: bool = False
    hashes_sent: int = 0
    promised: int = 0
    wait: Wait | None = None
    wanted_from: int | None = None
    offered_at: int = 0
    ready: int | None = None
    """So many tokens are proven and in host memory, for as long as the request is queued; None while they load."""
    slots: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class _Saving:
    """A request whose blocks are to be stored from `next_unit` on; None until its first step."""

    request: Any
    stored: int = 0
    next_unit: int | None = None
    is_over: bool = False
    kept: int | None = None
    """How many tokens come before the first block that was not handed over; None while all were."""


class StoreScheduler:
    """One per engine, used by its scheduler's thread alone."""

    def __init__(self, name: str, shape: Shape, settings: Settings, role: str, words: Words | None = None) -> None:
        """`name` is the agent's. `role` is vLLM's kv_role. `words` put KV events, where those are wanted."""
        self._name = name
        self._shape = shape
        self._settings = settings
        self._loads_wanted = role != "kv_producer"
        self._saves_wanted = role != "kv_consumer"
        self._pace = Pace()
        self._steps = 0
        self._channel: Channel | None = None
        self._next_connect = 0.0
        self._state = m.State(is_usable=False, why="the agent is not there yet", namespace="", agent="")
        self._prompts: dict[str, _Prompt] = {}
        self._saving: dict[str, _Saving] = {}
        self._loads: list[LoadPlan] = []
        self._counters = Counters()
        self._events = Events(words, shape, self._counters) if words is not None and self._saves_wanted else None
        self._told_fault = False
        self._agent_totals: Mapping[str, float] = {}
        self._told_mismatch = False
        self._epoch = 0
        # The epoch that a reset has ended, until another has begun.
        self._epoch_left: int | None = None
        self._unanswered_since: float | None = None
        self._is_silent = False

    # -- what vLLM asks -----------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """Ask the agent about a new prompt."""
        self._poll()
        if self._saves_wanted:
            self._saving[request.request_id] = _Saving(request)
        total = min(self._shape.usable(request.num_tokens) // self._shape.hash_tokens, len(request.block_hashes))
        is_barred = not self._loads_wanted or getattr(request, "skip_reading_prefix_cache", False)
        if total <= 0 or is_barred:
            return
        prompt = self._prompts[request.request_id] = _Prompt(request, total)
        if self._may_ask:
            self._ask(prompt)

    def _ask(self, prompt: _Prompt) -> None:
        """Ask the agent, for the first time or because it lost the store or was another one the last time."""
        request = prompt.request
        prompt.asks, prompt.is_asked, prompt.wanted_from, prompt.hashes_sent = prompt.asks + 1, True, None, 0
        prompt.promised = self._promised(request)
        first, seconds = self._slice(prompt), self._budget(prompt, request.num_tokens)
        self._send(m.Ask(_ticket(prompt), prompt.hashes_total, prompt.promised, seconds, first))
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()

    @property
    def _may_ask(self) -> bool:
        """Whether there is an agent to ask: one that can use the store, or that has not said yet whether it can."""
        is_new = self._channel is not None and not self._state.agent
        return (self._state.is_usable or is_new) and not self._is_silent

    def matched_tokens(self, request: Any, computed: int) -> int | None:
        """Tokens beyond `computed` that are proven and in host memory; None to be asked again."""
        prompt = self._prompts.get(request.request_id)
        if prompt is None:
            return 0
        now = time.monotonic()
        self._poll()
        if not prompt.is_asked:
            if not self._may_ask:
                self._drop(request.request_id)
                return 0
            self._ask(prompt)
        if prompt.wait is None:
            prompt.wait = Wait(self._budget(prompt, request.num_tokens - computed), now, self._steps)
        if prompt.wanted_from is None:
            prompt.wanted_from = computed
            self._send(m.Want(_ticket(prompt), computed))
        self._send_more(prompt)
        if prompt.ready is not None:
            return self._offer(prompt, computed)
        if prompt.wait.is_over(now, self._steps):
            self._counters.add("waits_over_budget")
            # An agent that says nothing at all hangs: nobody else shall wait for it.
            self._is_silent = self._hangs(now)
            self._drop(request.request_id)
            return 0
        return None

    def _hangs(self, now: float) -> bool:
        """Whether the agent was asked, and has said nothing since for longer than a busy one would."""
        patience = min(_SILENT_SECONDS, self._settings.wait_ms / 1000)
        return self._unanswered_since is not None and now - self._unanswered_since >= patience

    def _budget(self, prompt: _Prompt, tokens: int) -> float:
        """Seconds that a prompt may wait in all. What prefill has promised is worth more patience than a chance."""
        limit = self._settings.wait_ms / 1000
        return limit if prompt.promised else self._pace.budget(tokens, limit)

    def _offer(self, prompt: _Prompt, computed: int) -> int | None:
        beyond = (prompt.ready or 0) - computed
        if beyond <= 0:
            self._drop(prompt.request.request_id)
            return 0
        if computed < (prompt.wanted_from or 0):
            # The engine's own cache has lost blocks since the load began. They were not asked for.
            self._put_off(prompt)
            return None
        prompt.offered_at = computed
        return beyond

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """Blocks are there, `external` tokens of them to be loaded."""
        prompt = self._prompts.get(request.request_id)
        if prompt is None:
            return
        if external > 0:
            self._plan_load(prompt, blocks.get_block_ids(), prompt.offered_at + external)
        else:
            self._drop(request.request_id)

    def _plan_load(self, prompt: _Prompt, ids: Sequence[Sequence[int]], tokens: int) -> None:
        places = self._shape.needed(tokens, prompt.offered_at)
        # A null block (0) is one that no token will look at any more.
        kept = [place for place in places if ids[place[0]][place[1]] != 0]
        plan = LoadPlan(
            self._state.agent,
            [group for group, _ in kept],
            [ids[group][block] for group, block in kept],
            [prompt.slots[place] for place in kept],
            list(prompt.slots.values()),
        )
        self._loads.append(plan)
        name = prompt.request.request_id
        if (saving := self._saving.get(name)) is not None:
            saving.stored = max(saving.stored, tokens)
        self._counters.add("loaded_tokens", tokens - prompt.offered_at)
        del self._prompts[name]
        self._send(m.HandOver(_ticket(prompt)))

    def plan_step(self, output: Any) -> StepPlan:
        """What the workers are to do in the step that `output` describes."""
        self._steps += 1
        self._pace.step(output.total_num_scheduled_tokens, time.monotonic())
        self._poll()
        loads, self._loads = self._loads, []
        return StepPlan(loads, self._plan_saves(output))

    def finished(self, request: Any) -> dict[str, Any] | None:
        """A request is over. What goes back with its answer, for whoever asked to be told what is stored."""
        name = request.request_id
        if name in self._prompts:
            self._drop(name)
        saving = self._saving.pop(name, None)
        hint = self._hint(request, saving.kept if saving is not None else None)
        return build_params(hint) if hint is not None else None

    def dropped(self, before: Mapping[str, int]) -> None:
        """Workers had no room for blocks of these requests: only so many tokens come before them."""
        for name, tokens in before.items():
            if (saving := self._saving.get(name)) is not None:
                saving.kept = tokens if saving.kept is None else min(saving.kept, tokens)

    def reset(self) -> bool:
        """Use nothing that was stored so far. An agent that is not there, or dies of it, leaves it to its successor."""
        self._epoch_left = self._epoch
        self._send(m.Reset())
        for name in list(self._prompts):
            self._drop(name)
        self._state = msgspec.structs.replace(self._state, is_usable=False, why="reset")
        if self._events is not None:
            self._events.forget()
        return True

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last call, by the agent and here."""
        return self._counters.take()

    def close(self) -> None:
        """End the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # -- KV events ----------------------------------------------------------------------------------------------------

    def take_events(self) -> Sequence[Any]:
        """What the store took of this engine, and lost, since the last call."""
        return self._with_events(lambda events: events.take()) or ()

    @property
    def is_expecting_events(self) -> bool:
        """Whether a step without requests would have something to tell, or soon will."""
        return self._events is not None and self._events.is_expecting(time.monotonic())

    def _with_events(self, act: Callable[[Events], Any]) -> Any:
        """Events are never worth a fault of the engine."""
        if self._events is None:
            return None
        try:
            return act(self._events)
        except Exception:
            self._counters.add("events_dropped")
            if not self._told_fault:
                self._told_fault = True
                logger.exception("KV events were not told. Not told again")
            return None

    # -- saves --------------------------------------------------------------------------------------------------------

    def _plan_saves(self, output: Any) -> list[SavePlan]:
        if not self._saving:
            return []
        scheduled, plans = output.num_scheduled_tokens, []
        for name, saving in self._saving.items():
            if saving.is_over or name not in scheduled:
                continue
            request = saving.request
            last = request.num_tokens if self._settings.save_decode_cache else request.num_prompt_tokens
            # Tokens beyond `num_tokens` are guesses of speculative decoding.
            tokens = min(request.num_computed_tokens + scheduled[name], last, request.num_tokens)
            first = self._shape.unit * (
                saving.stored // self._shape.unit if saving.next_unit is None else saving.next_unit
            )
            ids = output.kv_connector_block_state.get_block_ids(name)
            plan = self._plan_save(request, ids, first, tokens) if ids is not None else None
            if plan is not None:
                plans.append(plan)
            saving.next_unit = max(first, tokens) // self._shape.unit
            ends = (saving.next_unit + 1) * self._shape.unit > last
            saving.is_over = ends and not self._settings.save_decode_cache
        return plans

    def _plan_save(self, request: Any, ids: Sequence[Sequence[int]], first: int, tokens: int) -> SavePlan | None:
        """Whole units between `first` and `tokens`, group by group."""
        hashes = request.block_hashes
        end = min(tokens // self._shape.unit * self._shape.unit, len(hashes) * self._shape.hash_tokens)
        found = [
            (index, ids[index][block], block, hashes[self._shape.hash_index(index, block)])
            for index, group in enumerate(self._shape.groups)
            for block in range(first // group.block_tokens, end // group.block_tokens)
            if block < len(ids[index]) and ids[index][block] != 0
        ]
        if not found or not self._state.is_usable:
            return None
        self._with_events(
            lambda events: events.note(request, ((index, place) for index, _, place, _ in found), time.monotonic())
        )
        return SavePlan(
            request.request_id,
            first,
            [index for index, _, _, _ in found],
            [block for _, block, _, _ in found],
            [key for _, _, _, key in found],
        )

    # -- the hand-off -------------------------------------------------------------------------------------------------

    def _promised(self, request: Any) -> int:
        """Tokens that prefill said will be in the store, if they are this prompt's."""
        hint = read_hint(request.kv_transfer_params)
        # The namespace is not known before the agent's first word; the hash says the same of the tokens.
        namespace = self._state.namespace or (hint.namespace if hint else "")
        sizes = (self._shape.unit, self._shape.hash_tokens)
        promised = tokens_to_wait_for(hint, namespace, request.num_tokens, *sizes, request.block_hashes)
        if hint and not promised and hint.tokens < request.num_tokens and not self._told_mismatch:
            self._told_mismatch = True
            logger.warning(
                "Prefill promised KV that this engine would not recognise (namespace %s there, %s here). If they are "
                "equal, PYTHONHASHSEED differs. Prompts are computed here. Not told again",
                hint.namespace,
                namespace,
            )
        return promised

    def _hint(self, request: Any, kept: int | None) -> Hint | None:
        """What is being stored of a request that asked and ran to its end; None when there is nothing to wait for."""
        params = request.kv_transfer_params
        ended = getattr(request.status, "name", "") in _ENDED
        # What carries a hint asks for none: it is decode's leg, and its answer goes to a client.
        if not (self._saves_wanted and self._state.is_usable and ended and is_asked_for(params)) or read_hint(params):
            return None
        # A full store takes it or not. Decode looks for itself, and waits for nothing that may never come.
        if self._state.is_full:
            self._counters.add("promises_withheld")
            return None
        tokens = min(request.num_prompt_tokens, request.num_computed_tokens)
        tokens = tokens if kept is None else min(tokens, kept)
        return build_hint(
            self._state.namespace, tokens, self._shape.unit, self._shape.hash_tokens, request.block_hashes
        )

    # -- the agent ----------------------------------------------------------------------------------------------------

    def _slice(self, prompt: _Prompt) -> list[bytes]:
        end = min(prompt.hashes_sent + m.SLICE, prompt.hashes_total)
        part = prompt.request.block_hashes[prompt.hashes_sent : end]
        prompt.hashes_sent = end
        return [bytes(one) for one in part]

    def _send_more(self, prompt: _Prompt) -> None:
        """One more slice of a long prompt's hashes: in slices, they hold up no step."""
        if prompt.hashes_sent < prompt.hashes_total:
            self._send(m.More(_ticket(prompt), self._slice(prompt)))

    def _drop(self, name: str) -> None:
        if (prompt := self._prompts.pop(name, None)) is not None and prompt.is_asked:
            self._send(m.Drop(_ticket(prompt)))

    def _put_off(self, prompt: _Prompt) -> None:
        """Ask again when the engine would take the request, if the store can be used then. The queue may be long."""
        self._send(m.Drop(_ticket(prompt)))
        prompt.is_asked, prompt.ready = False, None
        prompt.slots.clear()

    def _asked(self, ticket: str) -> _Prompt | None:
        """The prompt that the agent speaks of; None when that is over, or was asked anew since."""
        prompt = self._prompts.get(ticket.rpartition("/")[0])
        return prompt if prompt is not None and prompt.is_asked and _ticket(prompt) == ticket else None

    def _send(self, message: m.Message) -> None:
        if self._channel is not None:
            self._guarded(lambda channel: channel.send(message))

    def _poll(self) -> None:
        """Take what the agent has said, or look whether there is one."""
        if self._channel is None:
            self._connect()
            return
        messages = self._guarded(lambda channel: channel.receive()) or ()
        if messages:
            self._unanswered_since, self._is_silent = None, False
        for message in messages:
            self._take(message)
        if self._channel is not None and self._channel.has_waiting:
            self._guarded(lambda channel: channel.flush())

    def _connect(self) -> None:
        now = time.monotonic()
        if now < self._next_connect:
            return
        self._next_connect = now + _RECONNECT_SECONDS
        try:
            self._channel = Channel.connect(self._name)
        except OSError:
            return
        self._send(m.HelloScheduler(self._events is not None))
        if self._epoch_left is not None:
            self._send(m.Reset())

    def _guarded(self, act: Callable[[Channel], Any]) -> Any:
        channel = self._channel
        if channel is None:
            return None
        try:
            return act(channel)
        except ChannelClosedError as error:
            channel.close()
            self._channel = None
            for prompt in self._prompts.values():
                self._put_off(prompt)
            self._agent_totals = {}
            if self._events is not None:
                # The memory that it lent is gone, and most of what it stored lay there.
                self._events.forget()
            self._set_state(m.State(is_usable=False, why=f"the agent is gone: {error}", namespace="", agent=""))
            return None

    def _take(self, message: m.Message) -> None:
        match message:
            case m.State():
                self._set_state(message)
            case m.Stored(ticket, tokens):
                if (saving := self._saving.get(ticket.rpartition("/")[0])) is not None:
                    saving.stored = max(saving.stored, tokens)
            case m.Slots(ticket, groups, blocks, slots):
                if (prompt := self._asked(ticket)) is not None:
                    prompt.slots.update(zip(zip(groups, blocks, strict=True), slots, strict=True))
            case m.Ready(ticket, tokens):
                if (prompt := self._asked(ticket)) is not None:
                    prompt.ready = tokens
            case m.Kept() | m.Gone() | m.AllGone():
                if self._events is not None:
                    self._events.hear(message)
            case m.Totals(sums):
                for name, total in sums.items():
                    self._counters.add(name, total - self._agent_totals.get(name, 0.0))
                self._agent_totals = sums

    def _set_state(self, state: m.State) -> None:
        was = self._state
        self._epoch = max(self._epoch, state.epoch)
        if state.is_usable and self._epoch_left is not None:
            if state.epoch > self._epoch_left:
                self._epoch_left = None
            else:
                # Said before it heard of the reset.
                state = msgspec.structs.replace(state, is_usable=False, why="reset")
        self._state = state
        if not state.is_usable:
            for prompt in self._prompts.values():
                if prompt.is_asked and prompt.ready is None:
                    self._put_off(prompt)
        if state.is_usable and not was.is_usable:
            logger.info("KV is shared in the namespace %s", state.namespace)
        elif was.is_usable and not state.is_usable:
            logger.warning("Serving without shared KV: %s", state.why)


def _ticket(prompt: _Prompt) -> str:
    """What the agent calls a prompt."""
    return f"{prompt.request.request_id}/{prompt.asks}"
