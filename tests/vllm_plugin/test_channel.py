"""The ring between tap and mirror gives back what was put in, in order, and never more than it has room for."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_vllm import kernel
from kvledger_vllm.channel import Receiver, Sender

SIZE, FOR_EVER = 1000, 60.0
TURNS = st.lists(st.one_of(st.binary(max_size=700), st.none()), max_size=200)


@given(turns=TURNS, size=st.sampled_from((SIZE, SIZE + 3, 200_000)))
def test_what_was_sent_is_taken_in_order_or_was_refused_whole(turns: list[bytes | None], size: int) -> None:
    """A message, or None for the reader's turn."""
    sender = Sender.create(size)
    receiver = Receiver(sender.memory, sender.bell)
    waiting = deque[bytes]()
    for turn in turns:
        if turn is not None:
            if sender.send(turn):
                waiting.append(turn)
            else:
                assert waiting, "an empty ring refused what is smaller than itself"
        elif waiting:
            taken = receiver.take()
            assert taken == waiting.popleft()
            receiver.done()
        else:
            assert receiver.take() is None
    assert sender.sent - sender.applied == len(waiting)
    while waiting:
        taken = receiver.take()
        assert taken == waiting.popleft()
        receiver.done()
    assert receiver.take() is None
    sender.close()


@pytest.mark.parametrize("length", [10, 60_000, 70_000, 140_000])
def test_an_empty_ring_takes_every_message_that_it_has_room_for(length: int) -> None:
    sender = Sender.create(256 << 10)
    receiver = Receiver(sender.memory, sender.bell)
    for number in range(40):
        message = bytes([number]) * (length if number % 3 else 500)
        assert sender.send(message), number
        assert receiver.take() == message
        receiver.done()
    sender.close()


@pytest.mark.parametrize("before", [1, 150, 1_000])
def test_a_reader_that_stands_still_has_the_whole_ring_to_fall_behind(before: int) -> None:
    size = 256 << 10
    sender = Sender.create(size)
    receiver = Receiver(sender.memory, sender.bell)
    for _ in range(before):
        assert sender.send(bytes(900))
        assert receiver.take()
        receiver.done()
    behind = 0
    while sender.send(bytes(900)):
        behind += 1
    assert behind >= size // 1_000
    for _ in range(behind):
        assert receiver.take()
        receiver.done()
    assert (receiver.take(), sender.sent - sender.applied) == (None, 0)
    sender.close()


def test_a_message_that_is_not_all_there_yet_is_not_taken() -> None:
    sender = Sender.create(SIZE)
    receiver = Receiver(sender.memory, sender.bell)
    sender.send(b"whole")
    sender._data[10] ^= 1
    assert receiver.take() is None
    sender._data[10] ^= 1
    assert receiver.take() == b"whole"
    sender.close()


@pytest.mark.parametrize("asleep", [True, False])
def test_the_bell_is_rung_for_a_reader_that_sleeps_and_for_no_other(asleep: bool) -> None:
    sender = Sender.create(SIZE)
    receiver = Receiver(sender.memory, sender.bell)
    receiver.asleep(asleep)
    sender.send(b"one")
    assert bool(select.select([sender.bell], [], [], 0)[0]) == asleep
    receiver.nap(sender.bell, 0)
    assert not select.select([sender.bell], [], [], 0)[0]
    sender.close()


def test_a_nap_ends_when_the_bell_is_rung_or_the_writer_is_gone() -> None:
    writer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = kernel.process(writer.pid)
    sender = Sender.create(SIZE)
    receiver = Receiver(sender.memory, sender.bell)
    ring = threading.Timer(0.05, sender.ring)
    ring.start()
    receiver.nap(descriptor, FOR_EVER)
    ring.join()
    assert not select.select([descriptor], [], [], 0)[0]
    end = threading.Timer(0.05, writer.communicate)
    end.start()
    receiver.nap(descriptor, FOR_EVER)
    assert select.select([descriptor], [], [], 0)[0]
    end.join()
    os.close(descriptor)
    sender.close()
