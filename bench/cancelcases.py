"""States in which a request is cancelled, as an engine core without a compute that gets there again and again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import BenchError
from bench.steady import NoCompute
from kvledger.snapshot import NOT_LOOKED_AT
from kvledger.views import I32
from kvledger.words import CancelCause, PinKind, RequestState
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest, Stop

BLOCK_TOKENS, CAPACITY_BLOCKS, STEP_TOKENS = 16, 512, 1024
MOST_STEPS = 4000


def _always(loop: EngineLoop, ledger: Ledger) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A state of one request among others: its lengths, those of the others before it, and what it must be in.

    `outputs` are tokens that it has drawn by then; `swaps` gives the engine a host pool; `holds` is what else must be
    so. `in_step`: the cancel comes when a step is planned and has computed nothing, in which alone the state is; the
    step goes on, and its apply is part of the release. `drains`: the engine ends. `ends` of its sequences have ended.
    """

    name: str
    state: RequestState
    prompt: int
    tokens: int
    others: tuple[tuple[int, int], ...] = ()
    n: int = 1
    outputs: int = 0
    swaps: bool = False
    holds: Callable[[EngineLoop, Ledger], bool] = _always
    in_step: bool = False
    drains: bool = False
    ends: int = 0


def _saves(loop: EngineLoop, ledger: Ledger) -> bool:
    return len(loop.cache.swaps._transfers.out_hosts) > 0


def _is_saved(loop: EngineLoop, ledger: Ledger) -> bool:
    return loop.cache.swaps.used_blocks > 0 and not _saves(loop, ledger)


def _restores(loop: EngineLoop, ledger: Ledger) -> bool:
    return len(loop.cache.swaps._transfers.in_hosts) > 0


def _copies(loop: EngineLoop, ledger: Ledger) -> bool:
    return bool((ledger.pins.kind == PinKind.COPY_ON_WRITE).any())


def _is_not_looked_at(loop: EngineLoop, ledger: Ledger) -> bool:
    return bool((ledger.slots.queue[ledger.slots.serial > 0] == NOT_LOOKED_AT).any())


def _is_looked_at(loop: EngineLoop, ledger: Ledger) -> bool:
    return not _is_not_looked_at(loop, ledger)


def _is_to_fork(loop: EngineLoop, ledger: Ledger) -> bool:
    return bool(loop._requests.unforked)


_ROOMY, _FULL, _SHORT = ((1024, 3000),), ((7000, 1000), (128, 1000)), ((7000, 400), (128, 300))
_GIVES_WAY: dict[str, Any] = {"prompt": 900, "tokens": 1000, "others": _FULL}
CASES = (
    Case(name="not looked at", state=RequestState.WAITING, prompt=2048, tokens=100, holds=_is_not_looked_at),
    Case(
        name="waiting",
        state=RequestState.WAITING,
        prompt=2048,
        tokens=100,
        others=((7900, 200),),
        holds=_is_looked_at,
    ),
    Case(name="prefilling", state=RequestState.RUNNING, prompt=4000, tokens=100),
    Case(name="decoding", state=RequestState.RUNNING, prompt=2048, tokens=500, others=_ROOMY, outputs=20),
    Case(name="preempted", state=RequestState.PREEMPTED, **_GIVES_WAY),
    Case(name="swapping out", state=RequestState.SWAPPED, swaps=True, holds=_saves, in_step=True, **_GIVES_WAY),
    Case(name="swapped", state=RequestState.SWAPPED, swaps=True, holds=_is_saved, **_GIVES_WAY),
    Case(
        name="swapping in",
        state=RequestState.RUNNING,
        prompt=900,
        tokens=1000,
        others=_SHORT,
        swaps=True,
        holds=_restores,
        in_step=True,
    ),
    Case(
        name="copy-on-write in flight",
        state=RequestState.RUNNING,
        prompt=2040,
        tokens=100,
        n=8,
        outputs=1,
        holds=_copies,
        in_step=True,
    ),
    Case(name="to be forked", state=RequestState.RUNNING, prompt=4000, tokens=100, n=8, holds=_is_to_fork),
    Case(name="just forked", state=RequestState.RUNNING, prompt=2040, tokens=100, n=8, outputs=1),
    Case(name="forked and copied", state=RequestState.RUNNING, prompt=2040, tokens=100, n=8, outputs=3),
    Case(name="partly finished", state=RequestState.RUNNING, prompt=2040, tokens=100, n=8, outputs=3, ends=4),
    Case(name="draining", state=RequestState.RUNNING, prompt=2048, tokens=500, others=_ROOMY, outputs=20, drains=True),
    Case(
        name="draining, waiting",
        state=RequestState.WAITING,
        prompt=2048,
        tokens=100,
        others=((7900, 200),),
        holds=_is_looked_at,
        drains=True,
    ),
)


class Stage:
    """A compute that takes no time; `visit` is called where a step is planned and nothing is computed."""

    def __init__(self) -> None:
        self._inner = NoCompute()
        self.visit: Callable[[], None] = lambda: None

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`."""
        self.visit()
        return self._inner.execute(batch)


class Cancels:
    """One engine core on a ledger file, in which the case's request comes, gets into its state and is cancelled."""

    def __init__(self, directory: Path, case: Case) -> None:
        self._directory, self._case, self._numbers, self._stage = directory, case, count(), Stage()
        self._config = EngineConfig(
            engine=re.sub(r"[^a-z]+", "-", case.name),
            capacity_blocks=CAPACITY_BLOCKS,
            block_size_tokens=BLOCK_TOKENS,
            vocab_size=32_000,
            max_num_batched_tokens=STEP_TOKENS,
            max_model_len_tokens=CAPACITY_BLOCKS * BLOCK_TOKENS,
            preemption="swap" if case.swaps else "recompute",
            swap_blocks=CAPACITY_BLOCKS if case.swaps else 0,
        )
        self._random = np.random.default_rng(0)
        self._open()

    def _open(self) -> None:
        self.ledger = Ledger.create(self._directory, self._config.limits())
        self._loop = EngineLoop(self._config, self.ledger, self._stage)

    def seconds(self, times: int) -> Iterator[tuple[float, int]]:
        """For each cancel the time until all is given back and published, and the blocks that the request held."""
        for _ in range(times):
            number = next(self._numbers)
            others = [self._submit(f"other{number}-{i}", *sizes) for i, sizes in enumerate(self._case.others)]
            name = self._submit(f"x{number}", self._case.prompt, self._case.tokens, self._case.n)
            came_ns = self._reach(name)
            slots = self._loop._requests.slots_of(name)
            held = int(self.ledger.slots.table_blocks[slots].sum())
            began_ns = came_ns or time.perf_counter_ns()
            self._loop.cancel([name], CancelCause.API)
            elapsed = (time.perf_counter_ns() - began_ns) / 1e9
            if len(self._loop._requests.slots_of(name)):
                raise BenchError("a cancelled request lives on")
            yield elapsed, held
            self._loop.cancel(others, CancelCause.API)
            self._loop.step()
            if self._case.drains:
                self.ledger.close()
                self._open()

    def _submit(self, name: str, prompt: int, tokens: int, n: int = 1) -> str:
        ids = self._random.integers(0, 32_000, prompt).tolist()
        refused = self._loop.submit(NewRequest(request_id=name, prompt=ids, max_tokens=tokens, n=n))
        if refused is not None:
            raise BenchError(f"a request of the row was refused: {refused.reason}")
        return name

    def _reach(self, name: str) -> int:
        """Bring the request into its state. Returns when that was, on the stopwatch, within a step; 0 between two."""
        came: list[int] = []
        if self._case.in_step:
            self._stage.visit = lambda: came.append(time.perf_counter_ns()) if self._is_there(name) else None
        for _ in range(MOST_STEPS):
            if came or (not self._case.in_step and self._is_there(name)):
                break
            self._loop.step()
        else:
            raise BenchError(f"{self._case.name}: the state never came about")
        self._stage.visit = lambda: None
        if self._case.drains:
            self._loop.drain()
        if self._case.ends:
            now_ns = self.ledger.clock.now_ns()
            self._loop.stop([Stop(request_id=name, index=index, since_ns=now_ns) for index in range(self._case.ends)])
        return came[0] if came else 0

    def _is_there(self, name: str) -> bool:
        slots, view = self._loop._requests.slots_of(name), self.ledger.slots
        if len(slots) != self._case.n or (view.state[slots] != self._case.state).any():
            return False
        runs = self._case.state is RequestState.RUNNING
        begun = not runs or bool(view.computed_tokens[slots[0]] > 0)
        drawn = bool((view.output_tokens[slots] >= self._case.outputs).all())
        return begun and drawn and self._case.holds(self._loop, self.ledger)
