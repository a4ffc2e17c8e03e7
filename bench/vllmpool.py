"""Row `vllm-pool`: taking and releasing 512 blocks with caching on, against vLLM's `BlockPool` in the same process."""

from __future__ import annotations

from bench.answers import Answer, ask
from bench.effort import Effort
from bench.estimate import Windows, estimate
from bench.goals import Goal
from bench.pool import BLOCKS, PHASES
from bench.result import Quantity, Result
from bench.vllmenv import vllm_python

NAME = "vllm-pool"
GOAL = Goal(bar=10.0, stretch=25.0)
HOW = f"""Both pools are full of cached blocks: taking {BLOCKS} evicts the {BLOCKS} least recently used, which then get
new keys, are cached again and released, the tail first. Of vLLM these are `get_new_blocks`, `cache_full_blocks` and
`free_blocks`, with statistics and events off. Ours works on a ledger file on tmpfs, and a round is a publication: it
keeps owner, tenant, group, stamps, clocks and counts of every block, of which vLLM's pool keeps the reference count
and the hash. Both must hand out the same blocks in every round, and end with all of them back and cached. Ratio: take
and release. Apart: caching, where vLLM gets hashes that it computed before (a request's, not the pool's, work) and ours
makes its keys of tokens and compares contents. Processor time of the one thread, in turns that swap who is
first; vLLM's heap is frozen for the garbage collector, as in its engine core. {GOAL.text}"""


def measure(effort: Effort) -> list[Result]:
    """Rounds of both pools in turns. Raises `NotHere` where there is no vLLM."""
    return [result(ask("bench.vllm_pool", effort, python=vllm_python()))]


def result(answer: Answer) -> Result:
    """The line of the table."""
    figures = answer.figures
    sums = {side: figures[f"{side} take"] + figures[f"{side} release"] for side in ("ours", "vllm")}
    ratio: Windows = sums["vllm"] / sums["ours"]
    whole = {side: sums[side] + figures[f"{side} index"] for side in sums}
    return Result(
        row=NAME,
        name=f"take and release of {BLOCKS} blocks, caching on: vLLM's BlockPool over ours",
        estimate=estimate(ratio),
        unit="×",
        how=HOW,
        bar=GOAL.bar,
        quantities=(
            GOAL.reached(ratio),
            *(Quantity(f"take and release, {side}", estimate(values), "µs") for side, values in sums.items()),
            *(
                Quantity(f"{phase}, {side}", estimate(figures[f"{side} {phase}"]), "µs")
                for phase in PHASES
                for side in sums
            ),
            Quantity("whole round with caching, vllm over ours", estimate(whole["vllm"] / whole["ours"]), "×"),
        ),
        facts=answer.facts,
    )
