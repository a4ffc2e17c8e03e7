"""The mirror's process: applies the tap's messages to the ledger, in order, until the engine core ends.

Started as `python -m kvledger_vllm.process LEDGER CHANNEL BELL CORE BEGAN LIMITS`: descriptors, of which CORE is a
pidfd, the core's monotonic clock in nanoseconds, and how the ledger was laid out. It takes no lock, holds nothing of
vLLM's, and goes on as long as there is something to apply, whatever becomes of the core.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from marshal import loads

from kvledger.adoption import adopt
from kvledger.layout import CONTROL_INDEX
from kvledger_vllm import kernel
from kvledger_vllm.channel import Receiver
from kvledger_vllm.geometry import limits_from
from kvledger_vllm.message import CLOSE, Message
from kvledger_vllm.publication import Publisher

_NAP_SECONDS = 0.1
"""Between two looks while messages come. To apply each as it comes takes several times the processor time, cold as
everything is then, and where cores are few it is the engine that pays."""
_AWAKE_NAPS, _LOOK_SECONDS = 2, 0.2
_NICE = 5


class MessageClock:
    """The ledger clock of a mirror: the time of the message that is being applied."""

    virtual = False

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def set(self, now_ns: int) -> None:
        """CLOCK_MONOTONIC nanoseconds."""
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The message's time."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The wall clock at the message's time."""
        return time.time_ns() - time.monotonic_ns() + self._now_ns


def messages(receiver: Receiver, core: int) -> Iterator[bytes]:
    """Each message, those that came in a nap in a row, until the process of pidfd `core` has ended and none is left.

    Sleeps when none has come for some naps; the bell ends either.
    """
    naps = 0
    while True:
        while (message := receiver.take()) is not None:
            yield message
            naps = 0
        if naps < _AWAKE_NAPS:
            naps += 1
            receiver.nap(core, _NAP_SECONDS)
            continue
        ended = kernel.ready(0, core)
        receiver.asleep(True)
        # Once more: a message may have been written before the word was.
        if receiver.take() is None:
            if ended:
                return
            receiver.nap(core, _LOOK_SECONDS)
        receiver.asleep(False)


def main(arguments: list[str]) -> int:
    """Mirror until the core closes the channel or ends. 1 where an error ended it, which the ledger then tells."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Meant for the engine, which ends in its own time and has more to say until then.
        signal.signal(number, signal.SIG_IGN)
    # Where both want the same processor, the engine goes first, and is not interrupted.
    os.nice(_NICE)
    with suppress(OSError):  # a sandbox may not have it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    descriptor, memory, bell, core, began_ns = map(int, arguments[:5])
    clock = MessageClock(began_ns)
    ledger = adopt(descriptor, limits_from(arguments[5]), clock)
    try:
        publisher, receiver = Publisher(ledger), Receiver(memory, bell)
        for packed in messages(receiver, core):
            message = Message(*loads(packed))
            clock.set(message.now_ns)
            if message.kind == CLOSE:
                ledger.publish_now()
                ledger.control[CONTROL_INDEX["closed"]] = bool((message.rare or {}).get("clean"))
                receiver.done(packed)
                return 0
            if not publisher.publish(message):
                receiver.want_all()
            receiver.done(packed)
    except Exception as error:
        ledger.instrument_failed(f"{type(error).__name__}: {error}")
        logging.getLogger("vllm.kvledger").exception("the mirror failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
