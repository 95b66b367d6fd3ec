"""What an engine's scheduler and workers say to their agent, and what it answers.

Messages go over a local socket that keeps their borders, so each is bounded: long lists are sent in slices.
"""

from typing import Final

import msgspec

SLICE: Final = 2048
"""Hashes or slots in one message at most: a message has to fit the socket's buffer."""

NEWS: Final = 512
"""Blocks of one message for events at most: it shares the socket with answers that requests wait for."""


class _Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages: its name travels with it."""


# -- from the scheduler -----------------------------------------------------------------------------------------------


class HelloScheduler(_Message, frozen=True):
    """The first message of a scheduler. `wants_news`: whether it is to hear what the store takes and loses."""

    wants_news: bool = False


class Ask(_Message, frozen=True):
    """A new prompt: how many of its `hashes` will come (in slices, these first), and how many were promised."""

    request: str
    total: int
    promised_tokens: int
    seconds: float
    hashes: list[bytes]


class More(_Message, frozen=True):
    """The next slice of a prompt's hashes."""

    request: str
    hashes: list[bytes]


class Want(_Message, frozen=True):
    """Blocks beyond `computed_tokens` are to be brought into host memory as soon as they are found."""

    request: str
    computed_tokens: int


class Drop(_Message, frozen=True):
    """A request needs nothing more. Slots that were handed to workers stay theirs."""

    request: str


class HandOver(_Message, frozen=True):
    """A request's slots now belong to the workers, who free them."""

    request: str


class Reset(_Message, frozen=True):
    """Nothing that was stored so far may be used any more."""


# -- from workers -----------------------------------------------------------------------------------------------------


class HelloWorker(_Message, frozen=True):
    """The first message of a worker; its arena's descriptor travels with it.

    `payloads` has the bytes of a block in each group, `groups` (block tokens, window or 0) of each group. The first
    `save_slots` slots are the worker's to fill, the others the agent's. `descriptor` tells people what the namespace is
    made of; it may be empty. `epoch` is the last that it heard of.
    """

    namespace: str
    rank: str
    ranks: int
    slot_size: int
    slots: int
    save_slots: int
    payloads: list[int]
    groups: list[tuple[int, int]]
    unit: int
    hash_tokens: int
    descriptor: str = ""
    epoch: int = 0


class Save(_Message, frozen=True):
    """Blocks lie in consecutive slots from `first_slot` on: of each its group and its hash."""

    first_slot: int
    groups: list[int]
    hashes: list[bytes]


class Freed(_Message, frozen=True):
    """Slots that were handed over have been read."""

    slots: list[int]


# -- from the agent ---------------------------------------------------------------------------------------------------


class Kept(_Message, frozen=True):
    """The store has taken these blocks on all ranks: parallel lists of groups and hashes."""

    groups: list[int]
    hashes: list[bytes]


class Gone(_Message, frozen=True):
    """Blocks that were told as kept, and are no more, or cannot be read."""

    groups: list[int]
    hashes: list[bytes]


class AllGone(_Message, frozen=True):
    """Nothing that was told as kept so far is vouched for any more."""


class State(_Message, frozen=True):
    """Whether the store can be used now, and if not, why. `agent` tells one agent's life from the next.

    `is_full`: it had no room for what was last put.
    """

    is_usable: bool
    why: str
    namespace: str
    agent: str
    epoch: int = 0
    is_full: bool = False


class Stored(_Message, frozen=True):
    """How many tokens of a prompt the store has."""

    request: str
    tokens: int


class Slots(_Message, frozen=True):
    """Where blocks of a request lie: parallel lists of groups, blocks and slots."""

    request: str
    groups: list[int]
    blocks: list[int]
    slots: list[int]


class Ready(_Message, frozen=True):
    """All that will come of a request has come: a prefix of `tokens` is proven and in host memory on all ranks."""

    request: str
    tokens: int


class Saved(_Message, frozen=True):
    """So many of the worker's own slots are free again, in the order in which they were filled."""

    count: int


class Totals(_Message, frozen=True):
    """Sums since the agent's start."""

    sums: dict[str, float]


News = Kept | Gone | AllGone
FromScheduler = HelloScheduler | Ask | More | Want | Drop | HandOver | Reset
FromWorker = HelloWorker | Save | Freed
FromAgent = State | Stored | Slots | Ready | Saved | Totals | News
Message = FromScheduler | FromWorker | FromAgent

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message's bytes."""
    return _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    """The message. Raises msgspec.MsgspecError for anything else."""
    return _DECODER.decode(data)
