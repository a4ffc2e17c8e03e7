"""The mirror's process: applies the tap's messages to the ledger, in order, until the engine core ends.

Started as `python -m kvledger_vllm.process LEDGER CHANNEL BELL CORE BEGAN LIMITS`: descriptors, of which CORE is a
pidfd, the core's monotonic clock in nanoseconds, and how the ledger was laid out. It takes no lock, holds nothing of
vLLM's, and goes on as long as there is something to apply, whatever becomes of the core.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

from kvledger.adoption import adopt
from kvledger_vllm import kernel
from kvledger_vllm.channel import Receiver
from kvledger_vllm.geometry import limits_from
from kvledger_vllm.message import CLOSE, unpacked
from kvledger_vllm.messageclock import MessageClock
from kvledger_vllm.publication import Publisher

_NAP_SECONDS = 0.2
"""Between two looks while messages come. To apply each as it comes takes several times the processor time, cold as
everything is then, and where cores are few it is the engine that pays."""
_AWAKE_NAPS, _LOOK_SECONDS = 2, 0.2
_NICE = 5
"""Behind the engine, and still a fourth of a core where an engine takes all of them: the mirror has to keep up."""


def messages(receiver: Receiver, core: int) -> Iterator[bytes | None]:
    """Each message, those that came in a nap in a row and None behind them, until the process of pidfd `core` has ended
    and none is left.

    Sleeps when none has come for some naps; the bell ends either.
    """
    naps = 0
    while True:
        while (message := receiver.take()) is not None:
            yield message
            naps = 0
        yield None
        if naps < _AWAKE_NAPS:
            naps += 1
            receiver.nap(core, _NAP_SECONDS)
            continue
        ended = kernel.ready(0, core)
        receiver.asleep(True)
        # Once more: a message may have been written before the word was.
        message = receiver.take()
        if message is None:
            if ended:
                return
            receiver.nap(core, _LOOK_SECONDS)
        receiver.asleep(False)
        if message is not None:
            yield message
            naps = 0


def apply(receiver: Receiver, publisher: Publisher, core: int) -> None:
    """Apply messages until the core closes the channel or ends; those that only go on, a row of them at a time."""
    for packed in messages(receiver, core):
        gathered = False
        for message in () if packed is None else unpacked(packed):
            gathered = publisher.gather(message)
            if gathered:
                continue
            publisher.settle()
            if message.kind == CLOSE:
                publisher.close(message)
            elif not publisher.publish(message):
                receiver.want_all()
        if not gathered:
            publisher.settle()
            receiver.done()
        if publisher.closed:
            return


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
    gc.freeze()  # what is there now stays, and need not be looked through again and again
    try:
        apply(Receiver(memory, bell), Publisher(ledger, clock), core)
    except Exception as error:
        ledger.instrument_failed(f"{type(error).__name__}: {error}")
        logging.getLogger("vllm.kvledger").exception("the mirror failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
