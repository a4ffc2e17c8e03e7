"""What paging buys: one trace through the engine with each way to place blocks, on a virtual clock.

`python -m bench.baselines TRACE` with a trace that `kvledger load` reads. Requests arrive as recorded; every prompt is
new, no prefix is shared. A step takes `--step-time`, copies of blocks take none: they are counted. Nothing is timed, so
that the same arguments give the same table everywhere.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from bench.errors import BenchError
from bench.machine import this_machine
from bench.steady import NoCompute
from kvledger.clock import VirtualClock
from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_agent.load.traces import TraceRow, read_trace
from kvledger_engine.allocation import Allocation
from kvledger_engine.config import EngineConfig
from kvledger_engine.contiguous import ContiguousCache
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import Finished, NewRequest, Refused, Tokens
from kvledger_engine.runs import runs_of
from kvledger_engine.steptime import StepTime, TimedCompute

LOOK_EVERY_STEPS = 8
_NS_PER_SECOND = 1e9


@dataclass(slots=True)
class Tally:
    """What was seen. `looks` are rows (seconds, running, held blocks, those with tokens, free blocks, longest run)."""

    looks: list[tuple[float, int, int, int, int, int]] = field(default_factory=list)
    first_token_seconds: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The engine that a trace is played through: blocks of 16 tokens, context in tokens, sequences at once."""

    blocks: int = 2048
    max_model_len: int = 8192
    max_num_seqs: int = 64
    step_time: str = "base=15ms,token=20us,seq=50us"


DEFAULT = Sizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is said of one way to place blocks; shares from 0 to 1, means over time."""

    mean_running: float
    peak_running: int
    empty_share: float
    pieces_share: float
    mean_first_token_seconds: float
    p95_first_token_seconds: float
    tokens_per_second: float
    preemptions: int
    moves: int
    moved_blocks: int
    fragmented: int


class Player:
    """An engine with one way to place blocks, and the requests of a trace on their way to it."""

    def __init__(self, allocation: Allocation, rows: list[TraceRow], sizes: Sizes) -> None:
        config = EngineConfig(
            engine=f"baseline-{allocation.value}",
            capacity_blocks=sizes.blocks,
            max_num_seqs=sizes.max_num_seqs,
            max_model_len_tokens=sizes.max_model_len,
            max_waiting=len(rows),
            prefix_caching=False,
            allocation=allocation.value,
        )
        self._clock = VirtualClock()
        self._ledger = Ledger.in_memory(config.limits(), clock=self._clock)
        self._size = config.block_size_tokens
        compute = TimedCompute(NoCompute(), StepTime.parse(sizes.step_time), self._clock)
        self.loop, self._rows, self.tally = EngineLoop(config, self._ledger, compute), rows, Tally()

    def play(self) -> None:
        """Until all have ended."""
        sent, steps = 0, 0
        while sent < len(self._rows) or self.loop.has_work:
            now = self._clock.now_ns() / _NS_PER_SECOND
            if not self.loop.has_work and self._rows[sent].at_seconds > now:
                self._clock.advance(round((self._rows[sent].at_seconds - now) * _NS_PER_SECOND) + 1)
                now = self._rows[sent].at_seconds
            due = [row for row in islice(self._rows, sent, None) if row.at_seconds <= now]
            self._submit(due, sent)
            sent += len(due)
            self._take(self.loop.step())
            steps += 1
            if steps % LOOK_EVERY_STEPS == 0:
                self._look()

    def _submit(self, due: list[TraceRow], first: int) -> None:
        requests = [
            NewRequest(request_id=str(first + at), prompt=[1] * row.prompt_tokens, max_tokens=row.output_tokens)
            for at, row in enumerate(due)
        ]
        self.tally.reasons += [answer.reason for answer in self.loop.submit_many(requests)]

    def _take(self, messages: list[Tokens | Finished | Refused]) -> None:
        now = self._clock.now_ns() / _NS_PER_SECOND
        for message in messages:
            if isinstance(message, Finished):
                self.tally.reasons.append(message.reason)
            elif isinstance(message, Tokens):
                self.tally.tokens += len(message.tokens)
                for request_id in message.request_ids:
                    late = now - self._rows[int(request_id)].at_seconds
                    self.tally.first_token_seconds.setdefault(request_id, late)

    def _look(self) -> None:
        slots, free = self._ledger.slots, self._ledger.blocks.state == BlockState.FREE
        live = slots.table_blocks[:, 0] > 0
        filled = int((-(-slots.computed_tokens[live] // self._size)).sum())
        held, longest = int(slots.table_blocks[live, 0].sum()), int(runs_of(free)[1].max(initial=0))
        seconds = self._clock.now_ns() / _NS_PER_SECOND
        self.tally.looks.append((seconds, int(live.sum()), held, filled, int(free.sum()), longest))

    def figures(self) -> Figures:
        """What was seen, once all have ended. Raises `BenchError` where not all were served."""
        if set(self.tally.reasons) != {"length"}:
            raise BenchError(f"not all requests were served: {set(self.tally.reasons)}")
        seconds, running, held, filled, free, longest = np.array(self.tally.looks, np.float64).T
        weights = np.diff(seconds, prepend=0.0)
        waits = np.array(list(self.tally.first_token_seconds.values()))
        values, cache = self._ledger.stats, self.loop.cache
        pieces = 1 - (longest * weights).sum() / max(1.0, (free * weights).sum())
        moves = (cache.moves, cache.moved_blocks, cache.fragmented) if isinstance(cache, ContiguousCache) else (0, 0, 0)
        return Figures(
            mean_running=float(np.average(running, weights=weights)),
            peak_running=int(running.max()),
            empty_share=float(1 - (filled * weights).sum() / (held * weights).sum()),
            pieces_share=float(pieces),
            mean_first_token_seconds=float(waits.mean()),
            p95_first_token_seconds=float(np.percentile(waits, 95)),
            tokens_per_second=self.tally.tokens / float(seconds[-1]),
            preemptions=int(values.values[values.counter("preemptions_total", mode="recompute")]),
            moves=moves[0],
            moved_blocks=moves[1],
            fragmented=moves[2],
        )


def play(allocation: Allocation, rows: list[TraceRow], sizes: Sizes) -> Figures:
    """What comes of a trace, whose rows are by time from 0 on, with one way to place blocks."""
    player = Player(allocation, rows, sizes)
    player.play()
    return player.figures()


def _row(said: Figures) -> list[str]:
    """In the order of `COLUMNS`."""
    return [
        f"{said.mean_running:.1f}",
        f"{said.peak_running}",
        f"{said.empty_share:.1%}",
        f"{said.pieces_share:.1%}",
        f"{said.mean_first_token_seconds:.1f} s",
        f"{said.p95_first_token_seconds:.1f} s",
        f"{said.tokens_per_second:.0f}",
        f"{said.preemptions:,}",
        f"{said.moves:,} ({said.moved_blocks:,} blocks)",
        f"{said.fragmented:,}",
    ]


COLUMNS = (
    "mean running",
    "peak running",
    "held blocks without a token",
    "free blocks outside the longest run",
    "mean time to first token",
    "p95",
    "output tokens/s",
    "preemptions",
    "runs copied",
    "times that room in pieces refused",
)


def main() -> None:
    """Print a table: a row for each way to place blocks."""
    parser = argparse.ArgumentParser(prog="python -m bench.baselines", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=500, help="so many of the trace (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=DEFAULT.blocks, help="of 16 tokens (default: %(default)s)")
    parser.add_argument(
        "--max-model-len", type=int, default=DEFAULT.max_model_len, help="tokens (default: %(default)s)"
    )
    parser.add_argument("--max-num-seqs", type=int, default=DEFAULT.max_num_seqs, help="(default: %(default)s)")
    parser.add_argument("--step-time", default=DEFAULT.step_time, help="(default: %(default)s)")
    args = parser.parse_args()
    sizes = Sizes(
        blocks=args.blocks,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        step_time=args.step_time,
    )
    trace, machine = read_trace(args.trace), this_machine()
    rows = [row for row in trace.rows if row.prompt_tokens + row.output_tokens <= args.max_model_len][: args.requests]
    print(
        f"{trace.name}: {len(rows):,} requests over {rows[-1].at_seconds:.0f} s; {args.blocks:,} blocks of 16 tokens, "
        f"context {args.max_model_len:,}, {args.step_time}; kvledger {machine.kvledger}, numpy {machine.numpy}, "
        f"Python {machine.python}, {machine.cpu_model}, {machine.cores} cores (nothing here is timed)\n"
    )
    print("| allocation | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    for allocation in Allocation:
        print(f"| {allocation.value} | " + " | ".join(_row(play(allocation, rows, sizes))) + " |", flush=True)


if __name__ == "__main__":
    main()
