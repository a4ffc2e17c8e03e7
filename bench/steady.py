"""An engine core in a steady state: a full running set over a file ledger, by default with a compute that does nothing.

What is left of a step then is the control plane: schedule, both publications, apply. Owns its ledger; measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import hashes
from bench.errors import BenchError
from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.computes import Computing
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import Finished, NewRequest

VOCABULARY = 32_000
BLOCK_TOKENS = 16
TOKENS_PER_STEP = 8192


class NoCompute:
    """A compute that takes no time: token 0 for every sample."""

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`."""
        return np.zeros(len(batch.sample_slots), np.int32)


def no_compute(config: EngineConfig) -> Computing:
    """See `NoCompute`."""
    return Computing(config=config, compute=NoCompute())


def engine(directory: Path, config: EngineConfig, compute: Compute) -> tuple[Ledger, EngineLoop]:
    """A new ledger file and the loop over it, as the product makes them, but for the salt of its keys."""
    ledger = Ledger.create(directory, config.limits())
    loop = EngineLoop(config, ledger, compute)
    hashes.pin(loop.cache)
    return ledger, loop


Open = Callable[[EngineConfig], Computing]
Build = Callable[[Path, EngineConfig, Compute], tuple[Ledger, EngineLoop]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who runs: prompts of so many random tokens, evenly drawn; by default none ends within 3,072 steps."""

    prompt_tokens: tuple[int, int] = (256, 1024)
    max_model_len_tokens: int = 4096
    output_tokens: int = 4096 - 1024


ENDLESS = Load()


class SteadyEngine:
    """`sequences` running at once, each replaced at once when it ends.

    A sequence ends after the load's output tokens, those that begin first at evenly spread times. `open_compute` makes
    what computes, `build` ledger and loop.
    """

    def __init__(
        self,
        directory: Path,
        *,
        sequences: int,
        load: Load = ENDLESS,
        open_compute: Open = no_compute,
        build: Build = engine,
    ) -> None:
        self.sequences, self._load = sequences, load
        self._random, self._submitted = np.random.default_rng(sequences), 0
        computing = open_compute(
            EngineConfig(
                engine=f"steady-{sequences}-{load.output_tokens}",
                capacity_blocks=sequences * load.max_model_len_tokens // BLOCK_TOKENS,
                block_size_tokens=BLOCK_TOKENS,
                vocab_size=VOCABULARY,
                max_num_seqs=sequences,
                max_num_batched_tokens=TOKENS_PER_STEP,
                max_model_len_tokens=load.max_model_len_tokens,
            )
        )
        self._vocabulary = computing.config.vocab_size
        self.ledger, self.loop = build(directory, computing.config, computing.compute)
        self._fill()

    def _fill(self) -> None:
        output_tokens = self._load.output_tokens
        for number in range(self.sequences):
            self._submit(1 + output_tokens * (number + 1) // self.sequences if self._spreads else output_tokens)
        prefills = self.sequences * self._load.prompt_tokens[1] // TOKENS_PER_STEP + 1
        for _ in range(prefills):
            self.step()

    @property
    def _spreads(self) -> bool:
        return self._load.output_tokens < ENDLESS.output_tokens

    def _submit(self, output_tokens: int) -> None:
        length = int(self._random.integers(*self._load.prompt_tokens, endpoint=True))
        prompt = self._random.integers(0, self._vocabulary, length).tolist()
        self._submitted += 1
        request = NewRequest(request_id=f"request-{self._submitted}", prompt=prompt, max_tokens=output_tokens)
        refused = self.loop.submit(request)
        if refused is not None:
            raise BenchError(f"the steady engine refused a request: {refused.reason}")

    def step(self) -> None:
        """One step; whoever ended in it is replaced before the next."""
        for message in self.loop.step():
            if isinstance(message, Finished):
                self._submit(self._load.output_tokens)

    @property
    def generated_tokens(self) -> int:
        """Output tokens since the start."""
        stats = self.ledger.stats
        return int(stats.values[stats.counter("generation_tokens_total")])

    def live_tokens(self) -> dict[str, list[int]]:
        """Prompt and output so far of every request that has not ended, by request id."""
        table = self.loop._requests
        live = np.flatnonzero(self.ledger.slots.serial[:]).tolist()
        return {table.request_ids[slot]: table.sequence(slot).tolist() for slot in live}

    def require_steady(self) -> None:
        """Raises `BenchError` unless the running set is as full as it should be and nobody was preempted."""
        stats = self.ledger.stats
        running = int(stats.values[stats.gauge("running")]) + int(stats.values[stats.gauge("waiting")])
        preempted = int(stats.values[stats.counter("preemptions_total", mode="recompute")])
        if running != self.sequences or preempted:
            raise BenchError(f"{running} of {self.sequences} sequences run, {preempted} were preempted: not steady")

    def close(self) -> None:
        """Leave the ledger."""
        self.loop.close()
