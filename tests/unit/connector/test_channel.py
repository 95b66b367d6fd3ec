"""The socket between an engine and its agent: messages keep their borders, nothing waits, memory is handed over."""

import os
import socket
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mooncake_store_connector.agent import messages as m
from mooncake_store_connector.agent.arena import Arena
from mooncake_store_connector.agent.channel import Channel, ChannelClosedError, is_ours, listen
from mooncake_store_connector.descriptor import LARGEST


def pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(left), Channel(right)


@given(st.text(max_size=40), st.lists(st.binary(min_size=32, max_size=32), max_size=50), st.integers(0, 10**6))
def test_messages_come_as_they_were_sent(name: str, hashes: list[bytes], number: int) -> None:
    sent: list[m.Message] = [m.Ask(name, number, 0, 0.5, hashes), m.Ready(name, number), m.Totals({"a": 1.5})]
    left, right = pair()
    for message in sent:
        left.send(message)
    assert right.receive() == sent
    assert right.receive() == []


def test_the_largest_message_fits() -> None:
    left, right = pair()
    largest = m.Ask("r" * 64, 1, 0, 0.5, [os.urandom(32) for _ in range(m.SLICE)])
    left.send(largest)
    assert not left.has_waiting
    assert right.receive() == [largest]


def test_what_does_not_fit_waits_and_loses_nothing() -> None:
    left, right = pair()
    sent: list[m.Message] = [m.Ready(str(number), number) for number in range(3000)]
    for message in sent:
        left.send(message)
    assert left.has_waiting
    received: list[m.Message] = []
    while len(received) < len(sent):
        received += right.receive()
        left.flush()
    assert received == sent


def test_the_last_words_of_one_that_is_killed_are_heard() -> None:
    """The kernel tells first that messages to it were left unread."""
    left, right = pair()
    right.send(m.Ready("unread", 1))
    left.send(m.State(True, "", "ns", "agent"))
    left.close()
    assert right.receive() == [m.State(True, "", "ns", "agent")]
    with pytest.raises(ChannelClosedError, match="is gone"):
        right.receive()


def test_one_that_does_not_read_is_given_up() -> None:
    left, _right = pair()

    def send_without_end() -> None:
        while True:
            left.send(m.Ready("x", 1))

    with pytest.raises(ChannelClosedError, match="does not read"):
        send_without_end()


def test_an_end_that_is_gone_is_told() -> None:
    left, right = pair()
    right.close()
    with pytest.raises(ChannelClosedError):
        left.send(m.HelloScheduler())
    with pytest.raises(ChannelClosedError):
        left.receive()


def test_nonsense_ends_the_connection() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.send(b"\xc1nonsense")
    with pytest.raises(ChannelClosedError, match="makes no sense"):
        Channel(right).receive()


def test_memory_is_handed_over() -> None:
    """Beside the longest text that a message of this kind may hold."""
    name = uuid.uuid4().hex
    listener = listen(name)
    channel = Channel.connect(name)
    accepted, _ = listener.accept()
    assert is_ours(accepted)
    arena, descriptor = Arena.create(4096, 4)
    hello = m.HelloWorker("ns", "tp0pp0", 1, 4096, 4, 2, [64], [(16, 0)], 16, 16, "x" * LARGEST)
    channel.send(hello, descriptor)
    os.close(descriptor)
    [(message, received)] = Channel(accepted).receive_with_descriptors()
    assert message == hello
    assert received is not None
    other = Arena(received, 4096, 4)
    os.close(received)
    arena.slot(3)[:5] = b"bytes"
    assert bytes(other.slot(3)[:5]) == b"bytes"
    assert not os.get_inheritable(listener.fileno())
