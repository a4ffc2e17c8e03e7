"""Row `publication`: what an empty publication costs, as a share of a control step that makes two of them."""

from __future__ import annotations

from bench.effort import Effort
from bench.estimate import estimate
from bench.interleave import interleave, per_call
from bench.result import Bar, Quantity, Result, Sense
from bench.steady import SteadyEngine
from bench.tmpfs import ledger_directory

NAME = "publication"
SEQUENCES = 64
PUBLICATIONS_PER_WINDOW, STEPS_PER_WINDOW = 1000, 10
BAR = Bar(Sense.AT_MOST, 5.0)
HOW = f"""An empty publication (begin and end: clocks, peaks, the whole stats vector copied) against a step of
{SEQUENCES} decoding sequences with a compute that does nothing, both on the same ledger file on tmpfs."""


def measure(effort: Effort) -> list[Result]:
    """Windows of publications and of steps, about equally long, in turns."""
    with ledger_directory() as directory:
        engine = SteadyEngine(directory, sequences=SEQUENCES)
        figures = interleave(
            effort.rounds(full=200, quick=15),
            {
                "publication": per_call(lambda: engine.ledger.publish_now(idle=False), PUBLICATIONS_PER_WINDOW),
                "step": per_call(engine.step, STEPS_PER_WINDOW),
            },
        )
        engine.require_steady()
        engine.close()
    return [
        Result(
            row=NAME,
            name=f"an empty publication, share of a control step at {SEQUENCES} sequences",
            estimate=estimate(100 * figures["publication"] / figures["step"]),
            unit="%",
            how=HOW,
            bar=BAR,
            quantities=(
                Quantity("empty publication", estimate(figures["publication"]), "µs"),
                Quantity(f"control step, {SEQUENCES} decoding", estimate(figures["step"]), "µs"),
            ),
        )
    ]
