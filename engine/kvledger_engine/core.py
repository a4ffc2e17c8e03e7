"""The engine-core process: reads requests, runs steps, sends one frame a step, and gives every block back at its end.

Owns when the loop runs and when the process ends; never what a step does. It waits only when there is no work, and then
in `poll`: an idle engine runs no code. It never waits for the HTTP process: what that does not read is queued up to
MAX_QUEUED_BYTES, beyond which every open request is cancelled, since nobody is there to be served.
"""

from __future__ import annotations

import logging
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType

import msgspec

from kvledger.errors import LedgerError
from kvledger.words import CancelCause
from kvledger.writer import Ledger
from kvledger_engine.channel import CoreChannel
from kvledger_engine.computes import open_compute
from kvledger_engine.errors import EngineError
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import (
    Cancel,
    Drain,
    Finished,
    FromCore,
    Hello,
    NewRequest,
    Refused,
    StartFailed,
    Stop,
    ToCore,
)
from kvledger_engine.options import CoreOptions
from kvledger_engine.steptime import StepTime, TimedCompute

logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 16 << 20
LAST_FRAMES_SECONDS = 5.0


class Terminations:
    """Counts SIGTERM and SIGINT, and wakes a `poll` on its descriptor: the first drains, the second cancels."""

    def __init__(self) -> None:
        self.count = 0
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    @contextmanager
    def watched(self) -> Iterator[Terminations]:
        """Install the handlers, from the main thread, and remove them and the descriptors at the end."""
        signal.set_wakeup_fd(self._woken.fileno())
        before = {number: signal.signal(number, self._count) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            self.close()

    def fileno(self) -> int:
        """Readable after a signal."""
        return self._wake.fileno()

    def close(self) -> None:
        """Close the descriptors."""
        self._wake.close()
        self._woken.close()

    def acknowledge(self) -> None:
        """Make `fileno` unreadable until the next signal."""
        try:
            while self._wake.recv(64):
                pass
        except BlockingIOError:
            return


class Core:
    """One engine between its channel and its end. `run` returns when it has drained or lost the HTTP process."""

    def __init__(
        self, engine: EngineLoop, channel: CoreChannel, terminations: Terminations, *, drain_timeout_seconds: float
    ) -> None:
        self._engine, self._channel, self._terminations = engine, channel, terminations
        self._drain_timeout_seconds = drain_timeout_seconds
        self._give_up_at: float | None = None
        self._told_to_drain = False
        self._open: dict[str, int] = {}
        self._poll = select.poll()
        self._poll.register(terminations.fileno(), select.POLLIN)

    def run(self) -> None:
        """Serve until the end. Every request has ended and every frame is sent when it returns."""
        while not self._ended():
            outgoing: list[FromCore] = []
            if not self._engine.has_work:
                self._wait()
            self._take(self._channel.receive(), outgoing)
            self._obey()
            if self._engine.has_work:
                outgoing += self._engine.step()
            if self._engine.compute_lost:
                self._drain()
            self._send(outgoing)
        self._channel.flush_within(LAST_FRAMES_SECONDS)

    @property
    def ends_cleanly(self) -> bool:
        """Whether the end was asked for, by a signal or the HTTP process, and the compute is still at work."""
        asked = self._told_to_drain or self._terminations.count > 0
        return asked and not self._engine.compute_lost

    def _ended(self) -> bool:
        return self._give_up_at is not None and not self._engine.has_work

    def _wait(self) -> None:
        """Sleep until something comes: a frame, room for queued ones, or a signal."""
        wanted = select.POLLIN | (select.POLLOUT if self._channel.queued_bytes else 0)
        self._poll.register(self._channel.fileno(), wanted)
        self._poll.poll()
        self._terminations.acknowledge()

    def _take(self, messages: Sequence[ToCore], outgoing: list[FromCore]) -> None:
        """Hand over what came, in order; neighbours of one kind share a publication."""
        for kind, group in groupby(messages, type):
            if kind is NewRequest:
                self._submit([message for message in group if isinstance(message, NewRequest)], outgoing)
            elif kind is Cancel:
                self._engine.cancel_many([_asked(message) for message in group if isinstance(message, Cancel)])
            elif kind is Stop:
                self._engine.stop([message for message in group if isinstance(message, Stop)])
            elif kind is Drain:
                self._told_to_drain = True
                self._drain()

    def _submit(self, requests: list[NewRequest], outgoing: list[FromCore]) -> None:
        self._open |= {request.request_id: request.n for request in requests}
        for refused in self._engine.submit_many(requests):
            self._forget(refused)
            outgoing.append(refused)

    def _cancel(self, request_ids: Sequence[str], cause: CancelCause) -> None:
        if request_ids:
            self._engine.cancel(request_ids, cause)

    def _obey(self) -> None:
        """What signals, a lost peer, a stuck peer and a drain that takes too long ask for."""
        if self._channel.closed:
            self._drain()
            self._cancel(list(self._open), CancelCause.DISCONNECT)
        if self._terminations.count >= 1:
            self._drain()
        overdue = self._give_up_at is not None and time.monotonic() >= self._give_up_at
        if overdue or self._terminations.count > 1:
            self._cancel(list(self._open), CancelCause.API)
        if self._open and self._channel.queued_bytes > MAX_QUEUED_BYTES:
            logger.error(
                "channel=http queued_bytes=%d open=%d action=cancel_all", self._channel.queued_bytes, len(self._open)
            )
            self._cancel(list(self._open), CancelCause.DISCONNECT)

    def _drain(self) -> None:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + self._drain_timeout_seconds
            self._engine.drain()

    def _send(self, messages: list[FromCore]) -> None:
        for message in messages:
            self._forget(message)
        self._channel.send(messages) if messages else self._channel.flush()

    def _forget(self, message: FromCore) -> None:
        """Keep `_open` to the requests with sequences that have not ended."""
        if isinstance(message, Refused):
            self._open.pop(message.request_id, None)
        elif isinstance(message, Finished) and message.request_id in self._open:
            self._open[message.request_id] -= 1
            if self._open[message.request_id] <= 0:
                del self._open[message.request_id]


def _asked(cancel: Cancel) -> tuple[Sequence[str], CancelCause, int | None]:
    return cancel.request_ids, CancelCause[cancel.cause.upper()], cancel.since_ns or None


def build_engine(options: CoreOptions) -> tuple[EngineLoop, Hello]:
    """Open the model, create the ledger and the loop over it. Raises `LedgerError` or `EngineError`."""
    step_time = StepTime.parse(options.step_time)
    # The model first: one that cannot be opened leaves no ledger behind.
    opened = open_compute(options.config, options.model)
    config = opened.config
    fault = FaultPlan(FaultKind(options.fault), options.fault_after, config.seed) if options.fault else None
    named = tuple(config.quotas.tenants) if config.quotas else ()
    ledger = Ledger.create(Path(options.directory), config.limits(), allow_disk=options.allow_disk, tenants=named)
    compute = TimedCompute(opened.compute, step_time, ledger.clock) if options.step_time else opened.compute
    engine = EngineLoop(config, ledger, compute, fault)
    hello = Hello(
        engine=config.engine,
        model=config.model,
        max_model_len_tokens=config.max_model_len_tokens,
        vocab_size=config.vocab_size,
        ledger_path=str(ledger.path),
        tokenizer_path=opened.tokenizer_path,
        eos_token_ids=list(opened.eos_token_ids),
        capacity_tokens=config.capacity_blocks * config.block_size_tokens,
        has_scores=opened.has_scores,
        block_size_tokens=config.block_size_tokens,
        quotas=config.quotas,
        declared=config.declared(),
    )
    return engine, hello


def main(descriptor: int, options: CoreOptions) -> int:
    """Run a core on an inherited socket. Returns 0 after a clean end, 1 if it cannot start or cannot go on.

    Only a clean end marks the ledger `closed`: after a lost HTTP process or a lost compute every block is given back
    and counted, and readers see an engine that is `dead`. A defect of the engine ends the process with a traceback and
    leaves the ledger as it is, for whoever examines it.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with Terminations().watched() as terminations, closing(CoreChannel(socket.socket(fileno=descriptor))) as channel:
        try:
            engine, hello = build_engine(options)
        except (LedgerError, EngineError, ValueError, OSError) as error:
            channel.send([StartFailed(" ".join(str(error).split()))])
            channel.flush_within(LAST_FRAMES_SECONDS)
            return 1
        channel.send([hello])
        core = Core(engine, channel, terminations, drain_timeout_seconds=options.drain_timeout_seconds)
        core.run()
        engine.close(clean=core.ends_cleanly)
    return 0 if core.ends_cleanly else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=CoreOptions)))
