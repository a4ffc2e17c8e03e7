"""An engine on a virtual clock in a child process, driven a second at a time by the process that runs the agent.

The writer and a reader of one ledger never share a process, so the two halves talk over a pipe. Between two
`advance` calls the engine stands still: what the agent then reads is exact and repeatable.
"""

from __future__ import annotations

import heapq
import multiprocessing as mp
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from kvledger.clock import VirtualClock
from kvledger.words import CancelCause
from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.loop import EngineLoop
from kvledger_engine.steptime import StepTime, TimedCompute
from tests.reliability.workload import Arrival, StormShape, storm

NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """One engine life: where its ledger lies, its storm, its fault (`after` opportunities), and its size."""

    directory: Path
    seed: int
    storm_seconds: float
    fault: str | None = None
    fault_after: int = 0
    capacity_blocks: int = 160
    shape: StormShape = field(default_factory=StormShape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the engine knows of itself: the truth the agent's findings are held against."""

    now_ns: int
    has_work: bool
    steps: int
    fired_ns: int | None
    fired_block: int | None


class VirtualEngine:
    """The child's half: a loop, its ledger and a heap of what happens when."""

    def __init__(self, run: VirtualRun) -> None:
        config = EngineConfig(
            engine="virtual",
            capacity_blocks=run.capacity_blocks,
            block_size_tokens=8,
            max_num_seqs=16,
            max_num_batched_tokens=128,
            max_model_len_tokens=640,
            max_waiting=64,
            seed=run.seed,
        )
        self.clock = VirtualClock()
        self.ledger = Ledger.create(run.directory, config.limits(), clock=self.clock, allow_disk=True)
        cells = CellModel(
            capacity_blocks=config.capacity_blocks,
            block_size_tokens=config.block_size_tokens,
            vocab_size=config.vocab_size,
        )
        compute = TimedCompute(cells, StepTime.parse("base=20ms,token=20us,seq=500us"), self.clock)
        self.fault = FaultPlan(FaultKind(run.fault), after=run.fault_after, seed=run.seed) if run.fault else None
        self.loop = EngineLoop(config, self.ledger, compute, self.fault)
        self.steps = 0
        self._start_ns = self.clock.now_ns()
        self._arrivals: Iterator[Arrival] = storm(run.seed, run.shape, until_seconds=run.storm_seconds)
        self._next = next(self._arrivals, None)
        self._cancels: list[tuple[int, str]] = []

    def advance(self, seconds: float) -> Progress:
        """Let the engine live for `seconds` of its own time, then publish a heartbeat."""
        until_ns = self.clock.now_ns() + round(seconds * NS_PER_SECOND)
        while self.clock.now_ns() < until_ns:
            self._act()
            if self.loop.has_work:
                self.loop.step()
                self.steps += 1
            else:
                self.clock.advance(max(1, min(until_ns, self._next_action_ns()) - self.clock.now_ns()))
        if not self.loop.has_work:
            # On a real clock an idle engine is silent; a virtual one must say what time it is.
            self.ledger.publish_now(idle=True)
        return self.progress()

    def progress(self) -> Progress:
        """See `Progress`."""
        fired = self.fault is not None and self.fault.fired
        return Progress(
            now_ns=self.clock.now_ns(),
            has_work=self.loop.has_work,
            steps=self.steps,
            fired_ns=self.fault.fired_ns if fired and self.fault else None,
            fired_block=self.fault.block if fired and self.fault else None,
        )

    def _next_action_ns(self) -> int:
        times = [self._start_ns + self._next.at_ns] if self._next else []
        times += [self._cancels[0][0]] if self._cancels else []
        return min(times, default=1 << 62)

    def _act(self) -> None:
        """Do everything whose time has come: arrivals in order, then cancels."""
        now = self.clock.now_ns()
        while self._next and self._start_ns + self._next.at_ns <= now:
            arrival, self._next = self._next, next(self._arrivals, None)
            self.loop.submit(arrival.request)
            if arrival.cancel_at_ns is not None:
                heapq.heappush(self._cancels, (self._start_ns + arrival.cancel_at_ns, arrival.request.request_id))
        while self._cancels and self._cancels[0][0] <= now:
            _, request_id = heapq.heappop(self._cancels)
            self.loop.cancel([request_id], CancelCause.DISCONNECT)


def _serve(pipe: Connection) -> None:
    engine: VirtualEngine | None = None
    while True:
        message = pipe.recv()
        if message is None:
            return
        if isinstance(message, VirtualRun):
            engine = VirtualEngine(message)
            pipe.send(engine.progress())
        elif message == "close":
            assert engine is not None
            engine.ledger.close()
            pipe.send(engine.progress())
        else:
            assert engine is not None
            pipe.send(engine.advance(message))


class EngineHandle:
    """The parent's half: one child that lives through many runs, one after another."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def start(self, run: VirtualRun) -> Progress:
        """Begin a new engine life."""
        return self._ask(run)

    def advance(self, seconds: float) -> Progress:
        """Let it live for `seconds`."""
        return self._ask(seconds)

    def close(self) -> Progress:
        """Close its ledger cleanly."""
        return self._ask("close")

    def _ask(self, message: VirtualRun | float | str) -> Progress:
        self._pipe.send(message)
        answer = self._pipe.recv()
        assert isinstance(answer, Progress)
        return answer


@contextmanager
def virtual_engine() -> Iterator[EngineHandle]:
    """A child process that runs virtual engines, ended when the block is left."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    try:
        yield EngineHandle(ours)
    finally:
        with suppress(BrokenPipeError):  # it may have died; the join below collects it
            ours.send(None)
        child.join(10)
        if child.is_alive():
            child.kill()
            child.join()
        ours.close()
