"""A client of the router: prompts of any size, and a load that notices every failure."""

import asyncio
import hashlib
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

from router.programs import eventually

Body = dict[str, object]


@dataclass(frozen=True)
class Prompt:
    """One request. Its prompt is unlike any other, so that an answer to another one shows."""

    path: str
    body: Body
    streamed: bool

    def expected(self) -> str:
        """The text that a stand-in engine answers."""
        prompt = self.body["messages" if "chat" in self.path else "prompt"]
        digest = hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16]
        return digest + "".join(f" t{n}" for n in range(1, 16))


def prompt_of(size: int, *, streamed: bool, number: int, chat: bool = False) -> Prompt:
    """A prompt whose body is about `size` bytes."""
    text = f"{number} " + "x" * size
    if chat:
        return Prompt(
            "/v1/chat/completions", {"model": "smol", "messages": [{"role": "user", "content": text}]}, streamed
        )
    return Prompt("/v1/completions", {"model": "smol", "prompt": text}, streamed)


async def ask(session: aiohttp.ClientSession, url: str, prompt: Prompt) -> str:
    """What went wrong with the prompt; empty when its whole and right answer came."""
    body = {**prompt.body, "stream": prompt.streamed}
    try:
        async with session.post(url + prompt.path, json=body) as reply:
            data = await reply.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    if reply.status != 200:
        return f"status {reply.status}: {data[:200]!r}"
    text = text_of(data, streamed=prompt.streamed, chat="chat" in prompt.path)
    return "" if text == prompt.expected() else f"wrong text: {text[:100]!r}"


def text_of(data: bytes, *, streamed: bool, chat: bool) -> str:
    """The text of an answer's first choice. A stream without its announced end gives a text that says so."""
    if not streamed:
        choice = json.loads(data)["choices"][0]
        text: str = choice["message"]["content"] if chat else choice["text"]
        return text
    events = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    if not events or events[-1] != b"[DONE]":
        return f"no end: {events[-1:]}"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    return "".join(choice["delta"]["content"] if chat else choice["text"] for choice in choices)


@dataclass
class Load:
    """What became of a load. Written by the load's thread, read by the test's."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)

    def more(self, count: int, seconds: float = 60) -> None:
        """Waits until `count` more requests have ended."""
        goal = self.answered + len(self.failures) + count
        eventually(lambda: self.answered + len(self.failures) >= goal, f"{count} more requests end", seconds)


@contextmanager
def load(url: str, *, size: int, streamed: bool, clients: int = 4) -> Iterator[Load]:
    """Clients that ask without a pause while the block runs, and finish what they began when it ends.

    They run in a thread: the test itself stays in the main one, whose end would otherwise end the programs it starts.
    """
    result, stop = Load(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_run_load(url, size, streamed, clients, result, stop)))
    thread.start()
    try:
        yield result
    finally:
        stop.set()
        thread.join(90)


async def _run_load(url: str, size: int, streamed: bool, clients: int, result: Load, stop: threading.Event) -> None:
    numbers = itertools.count()

    async def client(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            number = next(numbers)
            failure = await ask(session, url, prompt_of(size, streamed=streamed, number=number, chat=number % 2 == 0))
            if failure:
                result.failures.append(failure)
            else:
                result.answered += 1
            await asyncio.sleep(0.01)

    async with new_client() as session, asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client(session))


def new_client(seconds: float = 60) -> aiohttp.ClientSession:
    """An HTTP client that gives up after `seconds`."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=seconds), connector=aiohttp.TCPConnector(limit=0, force_close=True)
    )
