"""States in which a request is cancelled, as an engine core without a compute that gets there again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from bench.errors import BenchError
from bench.steady import NoCompute
from kvledger.words import CancelCause, RequestState
from kvledger.writer import Ledger
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest

BLOCK_TOKENS, CAPACITY_BLOCKS, STEP_TOKENS = 16, 512, 1024
MOST_STEPS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A state of one request among others: its lengths, those of the others before it, and what it must be in.

    `outputs` are tokens that it has drawn by then; `swaps` gives the engine a host pool.
    """

    name: str
    state: RequestState
    prompt: int
    tokens: int
    others: tuple[tuple[int, int], ...] = ()
    n: int = 1
    outputs: int = 0
    swaps: bool = False


_ROOMY, _FULL = ((1024, 3000),), ((7000, 1000), (128, 1000))
CASES = (
    Case(name="waiting", state=RequestState.WAITING, prompt=2048, tokens=100, others=((7900, 200),)),
    Case(name="prefilling", state=RequestState.RUNNING, prompt=4000, tokens=100),
    Case(name="decoding", state=RequestState.RUNNING, prompt=2048, tokens=500, others=_ROOMY, outputs=20),
    Case(name="preempted", state=RequestState.PREEMPTED, prompt=900, tokens=1000, others=_FULL),
    Case(name="swapped", state=RequestState.SWAPPED, prompt=900, tokens=1000, others=_FULL, swaps=True),
    Case(name="just forked", state=RequestState.RUNNING, prompt=2040, tokens=100, n=8, outputs=1),
    Case(name="forked and copied", state=RequestState.RUNNING, prompt=2040, tokens=100, n=8, outputs=3),
)


class Cancels:
    """One engine core on a ledger file, in which the case's request comes, gets into its state and is cancelled."""

    def __init__(self, directory: Path, case: Case) -> None:
        self._case, self._numbers = case, count()
        config = EngineConfig(
            engine=case.name.replace(" ", "-"),
            capacity_blocks=CAPACITY_BLOCKS,
            block_size_tokens=BLOCK_TOKENS,
            vocab_size=32_000,
            max_num_batched_tokens=STEP_TOKENS,
            max_model_len_tokens=CAPACITY_BLOCKS * BLOCK_TOKENS,
            preemption="swap" if case.swaps else "recompute",
            swap_blocks=CAPACITY_BLOCKS if case.swaps else 0,
        )
        self.ledger = Ledger.create(directory, config.limits())
        self._loop = EngineLoop(config, self.ledger, NoCompute())
        self._random = np.random.default_rng(0)

    def seconds(self, times: int) -> Iterator[tuple[float, int]]:
        """For each cancel the time until all is given back and published, and the blocks that the request held."""
        for _ in range(times):
            number = next(self._numbers)
            others = [self._submit(f"other{number}-{i}", *sizes) for i, sizes in enumerate(self._case.others)]
            name = self._submit(f"x{number}", self._case.prompt, self._case.tokens, self._case.n)
            self._step_until_there(name)
            slots = self._loop._requests.slots_of(name)
            held = int(self.ledger.slots.table_blocks[slots].sum())
            began_ns = time.perf_counter_ns()
            self._loop.cancel([name], CancelCause.API)
            elapsed = (time.perf_counter_ns() - began_ns) / 1e9
            if len(self._loop._requests.slots_of(name)):
                raise BenchError("a cancelled request lives on")
            yield elapsed, held
            self._loop.cancel(others, CancelCause.API)
            self._loop.step()

    def _submit(self, name: str, prompt: int, tokens: int, n: int = 1) -> str:
        ids = self._random.integers(0, 32_000, prompt).tolist()
        refused = self._loop.submit(NewRequest(request_id=name, prompt=ids, max_tokens=tokens, n=n))
        if refused is not None:
            raise BenchError(f"a request of the row was refused: {refused.reason}")
        return name

    def _is_there(self, name: str) -> bool:
        slots, view = self._loop._requests.slots_of(name), self.ledger.slots
        if len(slots) != self._case.n or (view.state[slots] != self._case.state).any():
            return False
        waits = self._case.state is RequestState.WAITING
        computed = waits or self._case.state is not RequestState.RUNNING or (view.computed_tokens[slots[0]] > 0)
        return bool(computed) and bool((view.output_tokens[slots] >= self._case.outputs).all())

    def _step_until_there(self, name: str) -> None:
        for _ in range(MOST_STEPS):
            self._loop.step()
            if self._is_there(name):
                return
        raise BenchError(f"{self._case.name}: the state never came about")
