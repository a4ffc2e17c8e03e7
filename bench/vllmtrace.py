"""Row `vllm-trace`: the Mooncake trace through our cache and through vLLM's manager with caching on, in one process."""

from __future__ import annotations

from bench.answers import Answer, ask
from bench.effort import Effort
from bench.estimate import Windows, estimate
from bench.goals import Goal
from bench.result import Quantity, Result
from bench.traces import MOONCAKE, trace
from bench.vllmenv import vllm_python

NAME = "vllm-trace"
CAPACITY_BLOCKS, RUNNING, PER_WINDOW = 1 << 16, 32, 50
PART, QUICK_PART = 3000, 600
GOAL = Goal(bar=5.0, stretch=10.0)
HOW = f"""The prompts of the first {PART:,} requests of the Mooncake conversation trace by time (all of them with
`--whole`, {QUICK_PART} with `--quick`), in blocks of 16 tokens, through a pool of {CAPACITY_BLOCKS:,} blocks; an id of
the trace becomes 512 tokens, always the same, and the last token of each prompt is its own. {RUNNING} requests are held
at once: each new one makes the oldest end, looks its prefix up, shares what is found, takes blocks for the rest of the
prompt and has its full blocks cached. Outputs are left out: `vllm-decode` is about them. Of vLLM these are `free`,
`get_computed_blocks` and `allocate_slots`, statistics and events off; making its requests, in which it hashes all their
blocks, is timed apart. Ours are the same calls of the cache facade that the engine makes, prefix keys and the
comparison of contents included, with two publications of a ledger file on tmpfs per request and all its duties. Hit
tokens and blocks must be equal for every request, and all blocks given back. Processor time of the one thread, windows
of {PER_WINDOW} requests in turns that swap who is first; vLLM's heap is frozen for the garbage collector at the start,
as in its engine core. {GOAL.text}"""


def measure(effort: Effort) -> list[Result]:
    """Windows of both sides in turns. Raises `NotHere` where there is no vLLM, or no trace."""
    trace(MOONCAKE)
    return [result(ask("bench.vllm_trace", effort, python=vllm_python()))]


def result(answer: Answer) -> Result:
    """The line of the table."""
    ours, theirs, requests = (answer.figures[name] for name in ("ours", "vllm", "vllm requests"))
    ratio: Windows = theirs / ours
    return Result(
        row=NAME,
        name="Mooncake trace, look-up, sharing, allocation and release: vLLM's KVCacheManager over ours",
        estimate=estimate(ratio),
        unit="×",
        how=HOW,
        bar=GOAL.bar,
        quantities=(
            GOAL.reached(ratio),
            Quantity(f"{PER_WINDOW} requests, ours", estimate(ours), "ms"),
            Quantity(f"{PER_WINDOW} requests, vllm", estimate(theirs), "ms"),
            Quantity(f"{PER_WINDOW} requests made and hashed, vllm", estimate(requests), "ms"),
            Quantity("with requests made and hashed, vllm over ours", estimate((theirs + requests) / ours), "×"),
        ),
        facts=answer.facts,
    )
