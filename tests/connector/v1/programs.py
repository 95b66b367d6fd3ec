"""The engines of `engine.py`, as tests speak with them."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connector.v0.programs import Worker

SCRIPT = Path(__file__).with_name("engine.py")
ASK = {"mooncake_store": {"v": 1}}
IDLE = {"prompts": 0, "saving": 0, "requests": 0, "queued": 0, "blocks": 0}
_names = (f"request-{number}" for number in itertools.count())


@dataclass(frozen=True)
class Answer:
    """What came of a request: its tokens, why it ended, and how many prompt tokens came from where."""

    tokens: list[int]
    reason: str | None
    external: int
    local: int
    params: dict[str, Any] | None


class Engine:
    """One engine of the program."""

    def __init__(self, bench: Worker, name: str) -> None:
        self._bench = bench
        self.name = name

    def __call__(self, method: str, *arguments: object) -> Any:
        """Call a method of `engine.Engine`."""
        return self._bench("call", self.name, method, *arguments)

    def beside(self, name: str) -> "Engine":
        """Another one of the program."""
        return Engine(self._bench, name)

    def open(self, **options: object) -> None:
        """Begin anew."""
        self._bench("open", self.name, options)
        self.wait_usable()

    def close(self) -> None:
        """End it and its agent."""
        self._bench("close", self.name)

    def wait_usable(self, wished: bool = True) -> None:
        """Until it shares KV, or does not."""
        self.step_until("the store to be usable", lambda: self._bench("usable", self.name) is wished)

    def step_until(self, what: str, check: Callable[[], bool], seconds: float = 60) -> None:
        """Take steps until something is so."""
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"waiting for {what}: {self('state')}"
            self("step")
            time.sleep(0.005)

    def add(self, prompt: Sequence[int], max_tokens: int = 1, params: dict[str, Any] | None = None) -> str:
        """A new request's name."""
        name = next(_names)
        self("add", name, list(prompt), max_tokens, params)
        return name

    def answer(self, name: str) -> Answer:
        """What came of a request so far."""
        return Answer(**self._bench("answer", self.name, name))

    def complete(self, prompt: Sequence[int], max_tokens: int = 1, params: dict[str, Any] | None = None) -> Answer:
        """The answer to a prompt, when all that runs is over."""
        name = self.add(prompt, max_tokens, params)
        self.run()
        return self.answer(name)

    def run(self) -> None:
        """Until all requests are over, and nothing is left of them."""
        self("run", 60)
        assert self("state") == IDLE

    def events(self) -> list[dict[str, Any]]:
        """KV events that were published since the last call."""
        found: list[dict[str, Any]] = self("events")
        return found

    def count(self, metric: str) -> float:
        """One of the connector's sums since the engine began."""
        return float(self._bench("counts", self.name).get(metric, 0))

    def lose_loads(self, wished: bool) -> None:
        """Let loads name memory that no worker has any more."""
        self._bench("lose_loads", self.name, wished)

    @property
    def agent(self) -> int:
        """Its agent's process id."""
        return int(self._bench("agent", self.name))
