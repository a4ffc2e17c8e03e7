"""A whole engine core on a virtual clock, driven by hand, and the oracle its outputs are held against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger import invariants
from kvledger.clock import VirtualClock
from kvledger.reader import Reader
from kvledger.snapshot import Sample
from kvledger.source import MemorySource
from kvledger.views import I32
from kvledger.words import CancelCause, Event
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.faults import FaultPlan
from kvledger_engine.kvcache import KvCache
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import Finished, NewRequest, Refused, Token, Tokens
from kvledger_engine.steptime import StepTime, TimedCompute
from tests.engine.poison import PoisonedCellModel

STEP_NS = 1_000_000
VOCABULARY = 256
SMALL: dict[str, Any] = {
    "capacity_blocks": 64,
    "block_size_tokens": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len_tokens": 64,
    "max_waiting": 64,
    "vocab_size": VOCABULARY,
}
Sequence_ = tuple[str, int]


@dataclass(slots=True)
class Outcome:
    """What came out of a run: tokens and end of every sequence, by (request id, index)."""

    tokens: dict[Sequence_, list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[Sequence_, Finished] = field(default_factory=dict)
    refused: dict[str, Refused] = field(default_factory=dict)
    first_seen: list[Sequence_] = field(default_factory=list)

    def take(self, messages: Iterable[Tokens | Finished | Refused]) -> None:
        """Add what one step handed out."""
        for message in messages:
            if isinstance(message, Refused):
                self.refused[message.request_id] = message
                continue
            if isinstance(message, Tokens):
                for token in message.each():
                    self._take_token(token)
                continue
            key = message.request_id, message.index
            assert key not in self.finished, f"{key} ended twice"
            self.finished[key] = message

    def _take_token(self, token: Token) -> None:
        key = token.request_id, token.index
        assert key not in self.finished, f"a token of {key} after its end"
        if key not in self.tokens:
            self.first_seen.append(key)
        self.tokens[key].append(token.token)

    @property
    def reasons(self) -> dict[Sequence_, str]:
        """How every sequence ended."""
        return {key: message.reason for key, message in self.finished.items()}


class Checked:
    """A compute that is only handed batches within the engine's limits."""

    def __init__(self, inner: Compute, config: EngineConfig) -> None:
        self._inner, self._config = inner, config

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`."""
        config, size = self._config, self._config.block_size_tokens
        assert 1 <= len(batch.slots) <= config.max_num_seqs
        assert int(batch.counts.min()) >= 1
        assert len(batch.tokens) == int(batch.counts.sum()) <= config.max_num_batched_tokens
        assert len(set(batch.slots.tolist())) == len(batch.slots)
        assert len(set(batch.sample_slots.tolist())) == len(batch.sample_slots)
        whole = -(-(batch.starts + batch.counts) // size)
        for tables in batch.tables:
            there = np.diff(tables.offsets) + tables.skipped
            assert (there == whole if config.allocation == "paged" else there >= whole).all()
        return self._inner.execute(batch)


class Rig:
    """An engine core. Steps take `STEP_NS` of virtual time in the compute."""

    def __init__(self, *, compute: Compute | None = None, fault: FaultPlan | None = None, **config: Any) -> None:
        self.config = EngineConfig(**(SMALL | config))
        self.clock = VirtualClock()
        self.ledger = Ledger.in_memory(self.config.limits(), clock=self.clock)
        self.cells = PoisonedCellModel(
            self.ledger.blocks,
            block_size_tokens=self.config.block_size_tokens,
            vocab_size=self.config.vocab_size,
            swap_blocks=self.config.swap_blocks,
        )
        checked = Checked(compute or self.cells, self.config)
        timed = TimedCompute(checked, StepTime(base=STEP_NS / 1e9), self.clock)
        self.loop = EngineLoop(self.config, self.ledger, timed, fault)
        self.outcome = Outcome()
        self.reader = Reader.over(MemorySource(self.ledger.image))

    def submit(self, *requests: NewRequest) -> list[Refused]:
        """Submit in one publication; refusals are returned and kept."""
        refused = self.loop.submit_many(requests)
        self.outcome.refused |= {answer.request_id: answer for answer in refused}
        return refused

    def cancel(self, *request_ids: str, cause: CancelCause = CancelCause.DISCONNECT) -> None:
        """Cancel by id."""
        self.loop.cancel(request_ids, cause)

    def step(self, times: int = 1) -> None:
        """Run some steps."""
        for _ in range(times):
            self.outcome.take(self.loop.step())

    def finish(self, *, within_steps: int = 10_000) -> Outcome:
        """Run until there is no work; fails if that takes too long."""
        steps = 0
        while self.loop.has_work:
            self.step()
            steps += 1
            assert steps <= within_steps, f"still at work after {steps} steps"
        return self.outcome

    # -- what the ledger shows ------------------------------------------------------------------------------------

    def sample(self) -> Sample:
        """What a reader sees of the last publication."""
        return self.reader.sample(now_ns=self.clock.now_ns())

    def summaries(self) -> NDArray[Any]:
        """Every request that has ended, in order."""
        return self.reader.summaries(0).records

    def serials_of(self, event: Event) -> list[int]:
        """Serials of all events of a kind, in order."""
        records = self.reader.events(0).records
        return [int(serial) for serial in records["serial"][records["event"] == event]]

    def check(self) -> Sample:
        """No count and no block contradicts another; returns the sample."""
        sample, audit = self.sample(), self.reader.audit()
        assert invariants.suspects(audit) == []
        assert invariants.counts(sample, audit) == {}
        running = sample.stats.gauge("running")
        assert running is not None
        assert running <= self.config.max_num_seqs
        return sample

    def check_empty(self) -> None:
        """Nothing is held, nobody is seated, and the ledger says that it is idle."""
        sample = self.check()
        assert sample.stats.gauge("active_blocks") == 0
        assert len(sample.slots) == len(sample.pins) == 0
        assert sample.stats.gauge("idle") == 1
        assert self.slots_free == self.ledger.limits.max_requests

    @property
    def cache(self) -> KvCache:
        """The engine's own."""
        return self.loop.cache

    @property
    def running(self) -> I32:
        """The slots of the running set."""
        return self.loop._scheduler.running

    @property
    def slots_free(self) -> int:
        """Free request slots."""
        return int(self.sample().control["free_slot_count"])

    def count(self, name: str, **labels: str) -> float:
        """A counter; a per-tenant one summed over tenants."""
        stats = self.ledger.stats
        if (name, tuple(labels.items())) in stats.plan.tenant_counters:
            return float(stats.tenant_counter(name, **labels).sum())
        return stats.values[stats.counter(name, **labels)]

    def observed(self, name: str, **labels: str) -> tuple[int, float]:
        """(observations, their sum to nine digits) of a histogram."""
        value = self.sample().stats.histogram(name, **labels)
        assert value is not None
        return int(value.buckets.sum()), round(value.sum, 9)


def request(request_id: str, prompt: Sequence[int] | int = 8, max_tokens: int = 4, **more: Any) -> NewRequest:
    """A request; a number as prompt means so many tokens, which depend on the id."""
    if isinstance(prompt, int):
        prompt = [(sum(request_id.encode()) * 31 + 7 * i) % VOCABULARY for i in range(prompt)]
    return NewRequest(request_id=request_id, prompt=list(prompt), max_tokens=max_tokens, **more)


# -- the oracle: the cell model from a list of tokens alone, in Python's integers --------------------------------------

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def oracle(prompt: Sequence[int], max_tokens: int, *, seed: int = 0, temperature: float = 0.0) -> list[int]:
    """The tokens that follow `prompt`, without blocks, tables or batches."""
    tokens, cell, total, output = list(prompt), 0, 0, []
    for position in range(len(prompt) + max_tokens - 1):
        cell = (cell + _mix((_mix((tokens[position] + _GOLDEN) & _MASK) + position * _GOLDEN) & _MASK)) & _MASK
        total = (total + _mix((cell + (position + 1) * _GOLDEN) & _MASK)) & _MASK
        if position >= len(prompt) - 1:
            seeded = total + (_mix((seed + _GOLDEN) & _MASK) if temperature > 0 else 0)
            output.append((_mix(seeded & _MASK) >> 40) % VOCABULARY)
            tokens.append(output[-1])
    return output


def expected(requests: Iterable[NewRequest]) -> dict[Sequence_, list[int]]:
    """What every sequence of these requests must get if nothing cuts it short."""
    return {
        (r.request_id, index): oracle(r.prompt, r.max_tokens, seed=r.seed + index, temperature=r.temperature)
        for r in requests
        for index in range(r.n)
    }
