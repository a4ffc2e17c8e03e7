"""Row `paging`: what paging buys against contiguous runs, and how often cached blocks are found by eviction policy.

Nothing here is timed: clocks are virtual, and the same traces give the same figures on every machine. The windows are
parts of the traces, so that the spread is that between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.baselines import DEFAULT, Figures, play
from bench.effort import Effort
from bench.estimate import estimate
from bench.eviction import hit_rate, read_prompts
from bench.result import Quantity, Result
from bench.traces import AZURE, MOONCAKE, trace
from kvledger_agent.load.traces import TraceRow, read_trace
from kvledger_engine.allocation import Allocation
from kvledger_engine.evict import Eviction

NAME = "paging"
PART_REQUESTS, CACHE_BLOCKS, RUNNING, CACHE_REQUESTS = 200, 10_000, 16, 2500
HOW = f"""Parts of {PART_REQUESTS} requests of the Azure conversation trace, as recorded, through the engine with blocks
anywhere (`paged`), with a run for the longest context each (`reserve`), and with runs that grow and are copied
(`grow`): {DEFAULT.blocks:,} blocks of 16 tokens, context {DEFAULT.max_model_len:,}, steps of `{DEFAULT.step_time}` on
a virtual clock, no prefix shared. Running: mean over time. Held blocks without a token were reserved and not used."""
HOW_EVICTION = f"""Parts of {CACHE_REQUESTS:,} requests of the Mooncake conversation trace, each with an empty cache of
{CACHE_BLOCKS:,} of its blocks (512 tokens), {RUNNING} requests at once: the share of prompt blocks found cached."""


def measure(effort: Effort) -> list[Result]:
    """Both halves. Raises `NotHere` where there is no trace."""
    return [*_placement(effort), *_eviction(effort)]


def _placement(effort: Effort) -> list[Result]:
    rows = [
        row for row in read_trace(trace(AZURE)).rows if row.prompt_tokens + row.output_tokens <= DEFAULT.max_model_len
    ]
    seen: dict[Allocation, list[Figures]] = {allocation: [] for allocation in Allocation}
    for number in effort.rounds(5, 3):
        part = from_zero(rows[number * PART_REQUESTS : (number + 1) * PART_REQUESTS])
        for allocation in Allocation:
            seen[allocation].append(play(allocation, part, DEFAULT))
    return [_against(seen, other) for other in (Allocation.RESERVE, Allocation.GROW)]


def from_zero(rows: list[TraceRow]) -> list[TraceRow]:
    """A part of a trace, its first request at 0 seconds."""
    return [replace(row, at_seconds=row.at_seconds - rows[0].at_seconds) for row in rows]


def _against(seen: dict[Allocation, list[Figures]], other: Allocation) -> Result:
    paged, theirs = seen[Allocation.PAGED], seen[other]

    def both(what: str, unit: str, of: Callable[[Figures], float]) -> list[Quantity]:
        sides = ((Allocation.PAGED, paged), (other, theirs))
        return [
            Quantity(f"{what}, {side.value}", estimate([of(one) for one in figures]), unit) for side, figures in sides
        ]

    return Result(
        row=NAME,
        name=f"sequences running at once: paged over {other.value}",
        estimate=estimate([ours.mean_running / its.mean_running for ours, its in zip(paged, theirs, strict=True)]),
        unit="×",
        how=HOW,
        quantities=(
            *both("running, mean", "", lambda one: one.mean_running),
            *both("held blocks without a token", "%", lambda one: one.empty_share * 100),
            *both("time to first token, mean", "ms", lambda one: one.mean_first_token_seconds * 1e3),
            *both("output", "tokens/s", lambda one: one.tokens_per_second),
        ),
    )


def _eviction(effort: Effort) -> list[Result]:
    prompts = read_prompts(trace(MOONCAKE))
    parts = effort.choose(4, 3)
    size = effort.choose(CACHE_REQUESTS, CACHE_REQUESTS // 5)
    found = {
        policy: [
            100 * hit_rate(prompts[at * size : (at + 1) * size], policy, capacity_blocks=CACHE_BLOCKS, running=RUNNING)
            for at in range(parts)
        ]
        for policy in Eviction
    }
    return [
        Result(
            row=NAME,
            name=f"prompt blocks found cached, eviction {policy.value}",
            estimate=estimate(rates),
            unit="%",
            how=HOW_EVICTION,
        )
        for policy, rates in found.items()
    ]
