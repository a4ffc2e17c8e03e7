"""An engine core in a steady state: a full running set over a file ledger, a compute that does nothing.

What is left of a step is the control plane: schedule, both publications, apply. Owns its ledger; measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.errors import BenchError
from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import Finished, NewRequest

VOCABULARY = 32_000
PROMPT_TOKENS = (256, 1024)
MAX_MODEL_LEN_TOKENS = 4096
ENDLESS_TOKENS = MAX_MODEL_LEN_TOKENS - PROMPT_TOKENS[1]


class NoCompute:
    """A compute that takes no time: token 0 for every sample."""

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`."""
        return np.zeros(len(batch.sample_slots), np.int32)


Build = Callable[[Path, EngineConfig, Compute], tuple[Ledger, EngineLoop]]
MakeCompute = Callable[[EngineConfig], Compute]


def engine(directory: Path, config: EngineConfig, compute: Compute) -> tuple[Ledger, EngineLoop]:
    """A new ledger file and the loop over it, as the product makes them."""
    ledger = Ledger.create(directory, config.limits())
    return ledger, EngineLoop(config, ledger, compute)


def no_compute(_: EngineConfig) -> Compute:
    """See `NoCompute`."""
    return NoCompute()


class SteadyEngine:
    """`sequences` running at once, each replaced at once when it ends.

    Prompts have 256 to 1,024 random tokens. A sequence ends after `output_tokens`, those that begin first at evenly
    spread times; by default none ends within 3,072 steps.
    """

    def __init__(
        self,
        directory: Path,
        *,
        sequences: int,
        output_tokens: int = ENDLESS_TOKENS,
        build: Build = engine,
        compute: MakeCompute = no_compute,
    ) -> None:
        self.sequences, self._output_tokens = sequences, output_tokens
        self._random, self._submitted = np.random.default_rng(sequences), 0
        config = EngineConfig(
            engine=f"steady-{sequences}-{output_tokens}",
            capacity_blocks=sequences * MAX_MODEL_LEN_TOKENS // 16,
            vocab_size=VOCABULARY,
            max_num_seqs=sequences,
            max_num_batched_tokens=8192,
            max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
        )
        self.ledger, self.loop = build(directory, config, compute(config))
        self._fill()

    def _fill(self) -> None:
        spread = self._output_tokens < ENDLESS_TOKENS
        for number in range(self.sequences):
            self._submit(1 + self._output_tokens * (number + 1) // self.sequences if spread else self._output_tokens)
        prefills = self.sequences * PROMPT_TOKENS[1] // 8192 + 1
        for _ in range(prefills):
            self.step()

    def _submit(self, output_tokens: int) -> None:
        length = int(self._random.integers(*PROMPT_TOKENS, endpoint=True))
        prompt = self._random.integers(0, VOCABULARY, length).tolist()
        self._submitted += 1
        request = NewRequest(request_id=f"request-{self._submitted}", prompt=prompt, max_tokens=output_tokens)
        refused = self.loop.submit(request)
        if refused is not None:
            raise BenchError(f"the steady engine refused a request: {refused.reason}")

    def step(self) -> None:
        """One step; whoever ended in it is replaced before the next."""
        for message in self.loop.step():
            if isinstance(message, Finished):
                self._submit(self._output_tokens)

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
