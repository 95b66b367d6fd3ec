"""A bounded load in the background: requests one after the other in a few threads, until told to stop."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from demo.client import Answer, call
from e2e.prompts import text
from e2e.stack import MODEL


@dataclass
class Load:
    """What the load has seen so far."""

    answers: list[Answer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def failures(self) -> list[str]:
        """Every request that got no good answer."""
        bad = [f"HTTP {answer.status}: {answer.body[:200]}" for answer in self.answers if answer.status != 200]
        return self.errors + bad


def body(number: int, *, max_tokens: int = 8, sentences: int = 20, **extra: Any) -> dict[str, Any]:
    """A chat request whose text nobody sent before."""
    question = f"{text(number, sentences)} Who took something first?"
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "temperature": 0, **extra}


@contextmanager
def running(
    url: str, *, threads: int = 2, first: int = 10_000, longest: float = 600, pause: float = 0, **request: Any
) -> Iterator[Load]:
    """Send requests while the block runs, at most `longest` seconds; each one is let to its end.

    `pause`: seconds that a thread rests after each. `request`: what `body` takes.
    """
    load = Load()
    stop = threading.Event()
    deadline = time.monotonic() + longest

    def work(thread: int) -> None:
        number = first + thread * 100_000
        while not stop.is_set() and time.monotonic() < deadline:
            number += 1
            try:
                load.answers.append(call(f"{url}/v1/chat/completions", body(number, **request)))
            except OSError as error:
                load.errors.append(f"request {number}: {error!r}")
            stop.wait(pause)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield load
    finally:
        stop.set()
        for worker in workers:
            worker.join(timeout=300)
