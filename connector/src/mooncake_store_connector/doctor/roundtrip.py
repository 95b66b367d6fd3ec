"""A round trip: one process puts an object, another gets it and proves it, and then it is removed.

The object is put and got by the calls that engines use, has their trailer, and lies under a key of its own. As a
program (`python -m mooncake_store_connector.doctor.roundtrip put|get CONFIG KEY`) it is one of the two.
"""

import dataclasses
import hashlib
import json
import os
import select
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TextIO

from mooncake_store_connector.agent.arena import Arena, slot_size_for
from mooncake_store_connector.client import LEAST_BUFFER, ClientConfig, StoreUnavailable, open_client, placement_near
from mooncake_store_connector.codes import Outcome, judge
from mooncake_store_connector.doctor.bounded import Deadline, open_replies, program, run_program
from mooncake_store_connector.doctor.report import Finding, Level
from mooncake_store_connector.frames import TRAILER, find_fault, seal
from mooncake_store_connector.sizes import SEGMENT_ALIGNMENT

PAYLOAD: Final = 1 << 20
_CHECK: Final = "round trip"
# What is kept of the time for removing the object and leaving.
_LEAVE_SECONDS: Final = 3.0
_LEAST_SECONDS: Final = 0.5
_REMEDIES: Final = {
    Outcome.UNREACHABLE: "the master stopped answering; see its log",
    Outcome.TRANSFER: "engines must reach each other's ports 15000-17000: see NetworkPolicies and local_hostname",
    Outcome.FULL: "no segment has room: engines or a store must lend memory (global_segment_size)",
    Outcome.MISS: "the object was not there any more: see the master's log for evictions",
}


def payload_of(key: str) -> bytes:
    """The bytes that belong under a key, as either process computes them."""
    return hashlib.shake_256(key.encode()).digest(PAYLOAD)


def make_round_trip(config: ClientConfig, deadline: Deadline) -> Finding:
    """Put in one process, get in another, and remove."""
    key = f"mooncake-store-connector-doctor-{uuid.uuid4().hex}"
    text = json.dumps(dataclasses.asdict(config))
    with _putting(program("roundtrip", "put", text, key), deadline) as putter:
        put = _read_reply(putter, deadline.left() - _LEAVE_SECONDS)
        if put.get("code") != 0:
            return judge_round_trip(put, {}, {})
        ran = run_program(program("roundtrip", "get", text, key), max(0.0, deadline.left() - _LEAVE_SECONDS))
        got = {"why": f"it ended with status {ran.status}"} if ran.status else _parse(ran.said)
        assert putter.stdin is not None  # noqa: S101 - it is a pipe
        putter.stdin.close()
        return judge_round_trip(put, got, _read_reply(putter, deadline.left()))


def judge_round_trip(put: Mapping[str, Any], got: Mapping[str, Any], removed: Mapping[str, Any]) -> Finding:
    """What to say of the answers of both processes. An answer is empty if none came."""
    for what, answer in (("put", put), ("get", got)):
        if "why" in answer:
            return Finding(Level.FAIL, _CHECK, f"the process for {what} gave up: {answer['why']}")
        if "code" not in answer:
            return Finding(
                Level.FAIL, _CHECK, f"{what} did not end in time", f"give more --timeout; {_REMEDIES[Outcome.TRANSFER]}"
            )
        if answer["code"] < 0:
            remedy = _REMEDIES.get(judge(answer["code"]), "see the master's log")
            return Finding(Level.FAIL, _CHECK, f"{what} failed with code {answer['code']}", remedy)
    size = PAYLOAD + TRAILER
    if got["code"] != size:
        found = f"{got['code']} of {size} bytes came"
        return Finding(Level.FAIL, _CHECK, found, _REMEDIES[Outcome.TRANSFER])
    if got["fault"] is not None or not got["is_equal"]:
        found = f"other bytes came than were put ({got['fault'] or 'payload'})"
        return Finding(Level.FAIL, _CHECK, found, "do not use this store: see its network and memory")
    if removed.get("code") != 0 or removed.get("is_gone") is not True:
        return Finding(
            Level.WARNING, _CHECK, "the object came whole, and could not be removed", "it is evicted in time"
        )
    return Finding(Level.OK, _CHECK, f"{PAYLOAD >> 10} KiB put in one process came whole in another, and were removed")


# -- the two processes ------------------------------------------------------------------------------------------------


@contextmanager
def _putting(command: list[str], deadline: Deadline) -> Iterator[subprocess.Popen[str]]:
    """The process that puts; it is ended if it has not left in time."""
    process = subprocess.Popen(  # noqa: S603 - this module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(max(_LEAST_SECONDS, deadline.left(_LEAVE_SECONDS)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _read_reply(process: subprocess.Popen[str], seconds: float) -> Mapping[str, Any]:
    """Its next answer; empty if none comes in time, or none at all."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    ready, _, _ = select.select([process.stdout], [], [], max(0.0, seconds))
    return _parse(process.stdout.readline()) if ready else {}


def _parse(text: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def main() -> None:
    """Be one of the two processes: answer with a line of JSON for each thing done."""
    role, text, key = sys.argv[1:]
    config = ClientConfig(**json.loads(text))
    replies = open_replies()
    # With a store of its own nobody else lends memory. Else engines do, and the doctor stands for one.
    segment = SEGMENT_ALIGNMENT if role == "put" and config.segment_size else 0
    try:
        client = open_client(dataclasses.replace(config, segment_size=segment, local_buffer_size=LEAST_BUFFER))
    except StoreUnavailable as error:
        _reply(replies, {"why": str(error)})
        os._exit(0)
    arena, _ = Arena.create(slot_size_for(PAYLOAD, TRAILER), 1)
    if (code := client.register_buffer(arena.address, arena.size)) != 0:
        _reply(replies, {"why": f"memory could not be registered: code {code}"})
    elif role == "put":
        _put(client, arena, key, replies)
    else:
        _get(client, arena, key, replies)
    # In order, or the master counts on the segment for ten seconds more.
    client.close()
    os._exit(0)


def _put(client: Any, arena: Arena, key: str, replies: TextIO) -> None:
    """Put the object; when standard input ends, remove it."""
    placement = placement_near(str(client.get_hostname()))
    arena.slot(0)[:PAYLOAD] = payload_of(key)
    seal(arena.slot(0), PAYLOAD, key)
    codes = client.batch_put_from([key], [arena.address], [PAYLOAD + TRAILER], placement)
    _reply(replies, {"code": codes[0]})
    sys.stdin.read()
    # Forced: whoever got it gave it a lease.
    code = client.remove(key, True)
    _reply(replies, {"code": code, "is_gone": client.batch_is_exist([key]) == [0]})


def _get(client: Any, arena: Arena, key: str, replies: TextIO) -> None:
    """Get the object and prove it."""
    code = client.batch_get_into([key], [arena.address], [PAYLOAD + TRAILER])[0]
    fault = find_fault(arena.slot(0), PAYLOAD, key)
    is_equal = bytes(arena.slot(0)[:PAYLOAD]) == payload_of(key)
    _reply(replies, {"code": code, "fault": fault.value if fault else None, "is_equal": is_equal})


def _reply(replies: TextIO, answer: Mapping[str, object]) -> None:
    print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    main()
