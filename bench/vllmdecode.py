"""Row `vllm-decode`: a decode step of 128 sequences, all control work, against vLLM's `allocate_slots` for the same."""

from __future__ import annotations

from bench.answers import Answer, ask
from bench.effort import Effort
from bench.estimate import Windows, estimate
from bench.goals import Goal
from bench.result import Quantity, Result
from bench.traces import AZURE, trace
from bench.vllmenv import vllm_python

NAME = "vllm-decode"
SEQUENCES, STEPS_PER_WINDOW = 128, 10
GOAL = Goal(bar=10.0, stretch=20.0)
HOW = f"""{SEQUENCES} sequences decode, a token each in every step, on both sides the same ones: prompts with lengths of
requests evenly spaced over the Azure conversation trace, random tokens, blocks of 16 tokens. Ours is a whole control
step of the engine core with a compute that does nothing: schedule, block tables and inputs of the batch, apply with
ends, prefix keys and index, two publications, every ledger duty, and the messages to the clients. vLLM's part is
`KVCacheManager.allocate_slots` alone, called for every request as its scheduler does, caching on, statistics and events
off: its scheduling, its batch and its output processing are not counted. What drawn tokens add to vLLM's requests,
hashes of full blocks among it, is timed apart; ours is always in the step. Both sides must hold equal numbers of blocks
after every window and give all of them back. Processor time of the one thread. A window is {STEPS_PER_WINDOW} steps of
ours, {STEPS_PER_WINDOW} of vLLM's, and the same in the other order: each side begins once where it has stopped and once
behind the other, which has had the processor's caches meanwhile. What that does to the first step is shown for both;
between real steps a model is computed, and every one is such a first step. vLLM's heap is frozen for the garbage
collector, as in its engine core. {GOAL.text}"""


def measure(effort: Effort) -> list[Result]:
    """Windows of both sides in turns. Raises `NotHere` where there is no vLLM, or no trace."""
    trace(AZURE)
    return [result(ask("bench.vllm_decode", effort, python=vllm_python()))]


def result(answer: Answer) -> Result:
    """The line of the table."""
    ours, slots, append = (answer.figures[name] for name in ("ours", "vllm", "vllm append"))
    ours_first, slots_first = answer.figures["ours first"], answer.figures["vllm first"]
    ratio: Windows = slots / ours
    return Result(
        row=NAME,
        name=f"decode step of {SEQUENCES} sequences, per token: vLLM's allocate_slots over our whole control step",
        estimate=estimate(ratio),
        unit="×",
        how=HOW,
        bar=GOAL.bar,
        quantities=(
            GOAL.reached(ratio),
            Quantity("control step, ours", estimate(ours), "µs"),
            Quantity("allocate_slots for all, vllm", estimate(slots), "µs"),
            Quantity("control step per token, ours", estimate(ours / SEQUENCES), "µs"),
            Quantity("allocate_slots per token, vllm", estimate(slots / SEQUENCES), "µs"),
            Quantity("tokens appended and hashed per token, vllm", estimate(append / SEQUENCES), "µs"),
            Quantity("with tokens appended and hashed, vllm over ours", estimate((slots + append) / ours), "×"),
            Quantity("first control step behind the other side, ours", estimate(ours_first), "µs"),
            Quantity("first allocate_slots for all behind the other side, vllm", estimate(slots_first), "µs"),
            Quantity("first steps behind the other side, vllm over ours", estimate(slots_first / ours_first), "×"),
        ),
        facts=answer.facts,
    )
