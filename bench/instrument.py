"""Row `instrument`: the engine as it is against the same engine without clocks, stamps, histograms and rings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import Windows, estimate
from bench.interleave import interleave, per_call
from bench.result import Bar, Quantity, Result, Sense
from bench.steady import ENDLESS, Load, Open, SteadyEngine, engine, no_compute
from bench.tmpfs import ledger_directory
from bench.uninstrumented import bare_engine
from kvledger_engine.computes import Computing, ModelOptions, open_compute
from kvledger_engine.config import EngineConfig

NAME = "instrument"
SEQUENCES, STEPS_PER_WINDOW = 64, 10
THROUGHPUT_BAR, STEP_BAR = Bar(Sense.AT_LEAST, 0.99), Bar(Sense.AT_MOST, 5.0)
SERVING = Load(prompt_tokens=(64, 128), max_model_len_tokens=512, output_tokens=256)
ON, OFF = "on", "off"
_OFF = """Off is the same engine over a file of its own, with these parts replaced by ones that do nothing
(`bench/uninstrumented.py`): the wait queue's clocks, the tenants' block-second clocks and the blocks' share clocks;
the stamps of blocks and slots; every histogram and what is read only for one (first block, first and last token of a
request, step phases, the stopwatches of allocator and sharing); the rings of events, ended requests and per-second
peaks. On in both: pool, tables, prefix index, the other records of blocks and requests, publications, gauges,
counters, and the step's own readings of the clock. Both run the same requests step by step, in windows that swap their
order from one to the next, and must have drawn the same tokens at the end."""
HOW_TOKENS = f"""The embedded model at its defaults and {SEQUENCES} sequences of {SERVING.prompt_tokens[0]} to
{SERVING.prompt_tokens[1]} prompt and {SERVING.output_tokens} output tokens, each followed by another when it ends.
Wall time of a window of one step of each engine. {_OFF}"""
HOW_STEP = f"""A control step, as in the row `control`, with a compute that does nothing: processor time of its
thread, in windows of {STEPS_PER_WINDOW} steps of each engine. {_OFF}"""


def embedded(config: EngineConfig) -> Computing:
    """The model an engine has by default."""
    return open_compute(config, ModelOptions())


@dataclass(frozen=True, slots=True)
class Twins:
    """Two engines that run the same requests."""

    on: SteadyEngine
    off: SteadyEngine

    @classmethod
    def start(cls, directory: Path, load: Load, opened: Open, stack: ExitStack) -> Twins:
        """Both, with a full running set; `stack` closes them."""
        engines = []
        for name, build in ((ON, engine), (OFF, bare_engine)):
            place = directory / name
            place.mkdir(mode=0o2750)
            engines.append(SteadyEngine(place, sequences=SEQUENCES, load=load, open_compute=opened, build=build))
            stack.callback(engines[-1].close)
        return cls(*engines)

    def race(self, rounds: Iterable[int], steps: int, clock_ns: Callable[[], int]) -> dict[str, Windows]:
        """Microseconds per step of both, by name. Raises `BenchError` if they did not do the same."""
        contenders = {
            ON: per_call(self.on.step, steps, clock_ns=clock_ns),
            OFF: per_call(self.off.step, steps, clock_ns=clock_ns),
        }
        figures = interleave(rounds, contenders, swap=True)
        for twin in (self.on, self.off):
            twin.require_steady()
        if self.on.generated_tokens != self.off.generated_tokens or self.on.live_tokens() != self.off.live_tokens():
            raise BenchError("the engine without its instrument drew other tokens: it is not the same engine")
        return figures


CASES = (
    ("64 decoding", ENDLESS, STEP_BAR),
    ("64 running, one ending every 4 steps", Load(output_tokens=256), None),
)


def measure(effort: Effort) -> list[Result]:
    """Windows of both engines in turns, with the model and with a compute that does nothing."""
    return [_with_model(effort), *(_without_compute(effort, *case) for case in CASES)]


def _with_model(effort: Effort) -> Result:
    with ledger_directory() as directory, ExitStack() as stack:
        twins = Twins.start(directory, SERVING, embedded, stack)
        figures = twins.race(effort.rounds(full=2000, quick=60), 1, time.perf_counter_ns)
    per_second = {name: SEQUENCES * 1e6 / microseconds for name, microseconds in figures.items()}
    return Result(
        row=NAME,
        name=f"output tokens a second of the embedded model, {SEQUENCES} running: instrument on over off",
        estimate=estimate(per_second[ON] / per_second[OFF]),
        unit="×",
        how=HOW_TOKENS,
        bar=THROUGHPUT_BAR,
        quantities=(
            Quantity("with the instrument", estimate(per_second[ON]), "tokens/s"),
            Quantity("without", estimate(per_second[OFF]), "tokens/s"),
            Quantity("added to a step", estimate(figures[ON] - figures[OFF]), "µs"),
        ),
    )


def _without_compute(effort: Effort, name: str, load: Load, bar: Bar | None) -> Result:
    with ledger_directory() as directory, ExitStack() as stack:
        twins = Twins.start(directory, load, no_compute, stack)
        figures = twins.race(effort.rounds(full=1000, quick=60), STEPS_PER_WINDOW, time.thread_time_ns)
    added = figures[ON] - figures[OFF]
    return Result(
        row=NAME,
        name=f"what the instrument adds to a control step, {name}, share of the step",
        estimate=estimate(100 * added / figures[ON]),
        unit="%",
        how=HOW_STEP,
        bar=bar,
        quantities=(
            Quantity(f"added to a step, {name}", estimate(added), "µs"),
            Quantity(f"step with the instrument, {name}", estimate(figures[ON]), "µs"),
            Quantity(f"step without, {name}", estimate(figures[OFF]), "µs"),
        ),
    )
