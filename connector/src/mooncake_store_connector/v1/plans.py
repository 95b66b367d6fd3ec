"""What the scheduler tells the workers to do in a step. Plain lists: it is pickled to every rank."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoadPlan:
    """Copy slots of the arena into blocks. `groups`, `blocks` and `slots` are parallel; `freed` are free afterwards."""

    agent: str
    groups: list[int]
    blocks: list[int]
    slots: list[int]
    freed: list[int]


@dataclass(frozen=True)
class SavePlan:
    """Hand over blocks of a prompt beyond `start` tokens: parallel lists of groups, block ids and hashes."""

    request: str
    start: int
    groups: list[int]
    blocks: list[int]
    hashes: list[bytes]


@dataclass(frozen=True)
class StepPlan:
    """Everything of one step."""

    loads: list[LoadPlan] = field(default_factory=list)
    saves: list[SavePlan] = field(default_factory=list)
