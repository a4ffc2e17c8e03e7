"""Row `instrument`: the engine as it is against the same engine without clocks, stamps, histograms and rings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import islice
from pathlib import Path

import numpy as np

from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import Windows, estimate
from bench.goals import Goal
from bench.interleave import Window, interleave, per_call
from bench.result import Bar, Quantity, Result, Sense
from bench.steady import ENDLESS, Load, Open, SteadyEngine, engine, no_compute
from bench.tmpfs import ledger_directory
from bench.uninstrumented import bare_engine
from kvledger.views import I32
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.computes import Computing, ModelOptions, open_compute
from kvledger_engine.config import EngineConfig

NAME = "instrument"
SEQUENCES = 64
TWINS, WINDOWS, QUICK_WINDOWS, STEPS_PER_WINDOW = 6, 300, 20, 10
MODEL_WINDOWS = 250
THROUGHPUT_GOAL, STEP_BAR = Goal(bar=0.99, stretch=0.995), Bar(Sense.AT_MOST, 5.0)
SERVING = Load(prompt_tokens=(64, 128), max_model_len_tokens=512, output_tokens=256)
STEPS_PER_ENDING = SERVING.output_tokens // SEQUENCES
ON, OFF = "on", "off"
_BLOCK_FIELDS = ("table_blocks", "copy_source", "copy_target")
_OFF = """Off is the same engine over a file of its own, with these parts replaced by ones that do nothing
(`bench/uninstrumented.py`): the wait queue's clocks, the tenants' block-second clocks and the blocks' share clocks;
the stamps of blocks and slots; every histogram and what is read only for one (first block, first and last token of a
request, step phases, the allocator's stopwatch); the rings of events, ended requests and per-second peaks. On in both:
pool, tables, prefix index, the other records of blocks and requests, publications, gauges, counters (the seconds spent
on sharing among them), and the step's readings of the clock. Both run the same requests step by step and must have
drawn the same tokens at the end. Windows swap their order from one to the next, and a figure is the mean of two, one of
each order: who comes second does better or worse by several times what the instrument costs. They share one compute,
each with a half of its blocks: two models side by side differ by where their memory lies, and by more than the
instrument costs. Several pairs of engines run one after the other, started in turns in one order and the other."""
HOW_TOKENS = f"""The embedded model at its defaults and {SEQUENCES} sequences of {SERVING.prompt_tokens[0]} to
{SERVING.prompt_tokens[1]} prompt and {SERVING.output_tokens} output tokens, each followed by another when it ends.
A window is {STEPS_PER_ENDING} steps of each engine, in which one sequence ends and another begins: the same tokens, so
their rates are as their times. The times are the process's processor time, all threads, since the instrument waits for
nothing and other processes share the machine. What the compute takes is timed apart, and the rates are those of an
engine whose compute takes the mean of both: it is the same code over the same memory, and its noise is several times
what the instrument costs. That it takes no longer beside the instrument is among the quantities, as are the rates
without this correction. {_OFF}"""
HOW_STEP = f"""A control step, as in the row `control`, with a compute that does nothing: processor time of its
thread, in windows of {STEPS_PER_WINDOW} steps of each engine. {_OFF}"""


def embedded(config: EngineConfig) -> Computing:
    """The model an engine has by default."""
    return open_compute(config, ModelOptions())


class Half:
    """A compute that works on half of another's blocks, those from `first_block` on. `spent_ns`: processor time."""

    def __init__(self, whole: Compute, first_block: int) -> None:
        self._whole, self._first_block = whole, np.int32(first_block)
        self.spent_ns = 0

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`."""
        began_ns = time.process_time_ns()
        moved = {name: getattr(batch, name) + self._first_block for name in _BLOCK_FIELDS}
        samples = self._whole.execute(replace(batch, **moved))
        self.spent_ns += time.process_time_ns() - began_ns
        return samples


class Halves:
    """One compute for both engines: the same weights and working memory, and a half of its blocks for each."""

    def __init__(self, opened: Open) -> None:
        self._opened = opened
        self._whole: Computing | None = None
        self.given: list[Half] = []

    def __call__(self, config: EngineConfig) -> Computing:
        """The next half, for an engine of this configuration."""
        blocks = config.capacity_blocks
        if self._whole is None:
            self._whole = self._opened(replace(config, capacity_blocks=2 * blocks))
        half = Half(self._whole.compute, len(self.given) * blocks)
        self.given.append(half)
        return replace(self._whole, config=replace(self._whole.config, capacity_blocks=blocks), compute=half)


@dataclass(frozen=True, slots=True)
class Race:
    """Microseconds per step, float[n]: processor time with and without, and the compute's part of it."""

    on: Windows
    off: Windows
    compute_on: Windows
    compute_off: Windows

    @property
    def added(self) -> Windows:
        """What the instrument adds to a step outside the compute."""
        difference: Windows = (self.on - self.compute_on) - (self.off - self.compute_off)
        return difference

    @property
    def leveled(self) -> tuple[Windows, Windows]:
        """Steps with and without, as if the compute had taken the mean of both.

        Raises `BenchError` if it took longer beside the instrument: then that is a part of the instrument's price.
        """
        compared = estimate(self.compute_on / self.compute_off)
        if compared.low > 1:
            raise BenchError(f"the compute took {compared.value:.4f} times as long beside the instrument")
        compute = (self.compute_on + self.compute_off) / 2
        return self.on - self.compute_on + compute, self.off - self.compute_off + compute

    def in_both_orders(self) -> Race:
        """The means of every two windows in a row, whose orders are opposite; a last one without a second is left out.

        The windows themselves have two medians, one of each order, and theirs would fall somewhere in between.
        """
        return Race(*(_means_of_two(getattr(self, f.name)) for f in fields(self)))

    def and_then(self, other: Race) -> Race:
        """The windows of both races."""
        return Race(*(np.concatenate((getattr(self, f.name), getattr(other, f.name))) for f in fields(self)))


def _means_of_two(windows: Windows) -> Windows:
    means: Windows = windows[: len(windows) // 2 * 2].reshape(-1, 2).mean(axis=1)
    return means


@dataclass(frozen=True, slots=True)
class Twins:
    """Two engines that run the same requests."""

    on: SteadyEngine
    off: SteadyEngine
    compute_on: Half
    compute_off: Half

    @classmethod
    def start(cls, directory: Path, load: Load, opened: Open, stack: ExitStack, *, off_first: bool = False) -> Twins:
        """Both, with a full running set; `stack` closes them. Where memory comes to lie depends on who starts first."""
        engines: dict[str, SteadyEngine] = {}
        computes: dict[str, Half] = {}
        builds, halves = ((ON, engine), (OFF, bare_engine)), Halves(opened)
        for name, build in builds[::-1] if off_first else builds:
            place = directory / name
            place.mkdir(mode=0o2750)
            engines[name] = SteadyEngine(place, sequences=SEQUENCES, load=load, open_compute=halves, build=build)
            stack.callback(engines[name].close)
            computes[name] = halves.given[-1]
        return cls(engines[ON], engines[OFF], computes[ON], computes[OFF])

    def race(self, rounds: Iterable[int], steps: int, clock_ns: Callable[[], int]) -> Race:
        """Microseconds per step of both, of every two rounds. Raises `BenchError` if they did not do the same."""
        spent: dict[str, list[float]] = {ON: [], OFF: []}

        def window(name: str, step: Callable[[], None], compute: Half) -> Window:
            timed = per_call(step, steps, clock_ns=clock_ns)

            def both() -> float:
                before_ns = compute.spent_ns
                processor = timed()
                spent[name].append((compute.spent_ns - before_ns) / steps / 1e3)
                return processor

            return both

        contenders = {ON: window(ON, self.on.step, self.compute_on), OFF: window(OFF, self.off.step, self.compute_off)}
        figures = interleave(rounds, contenders, swap=True)
        for twin in (self.on, self.off):
            twin.require_steady()
        if self.on.generated_tokens != self.off.generated_tokens or self.on.live_tokens() != self.off.live_tokens():
            raise BenchError("the engine without its instrument drew other tokens: it is not the same engine")
        return Race(figures[ON], figures[OFF], np.array(spent[ON]), np.array(spent[OFF])).in_both_orders()


CASES = (
    ("64 decoding", ENDLESS, STEP_BAR),
    ("64 running, one ending every 4 steps", Load(output_tokens=256), None),
)


def measure(effort: Effort) -> list[Result]:
    """Windows of both engines in turns, with the model and with a compute that does nothing."""
    return [_with_model(effort), *(_without_compute(effort, *case) for case in CASES)]


def _races(
    effort: Effort, load: Load, opened: Open, *, steps: int, clock_ns: Callable[[], int], windows: int = WINDOWS
) -> Race:
    """The windows of several pairs of engines, one pair after the other, each in turn started in the other order."""
    rounds = effort.rounds(full=TWINS * windows, quick=TWINS * QUICK_WINDOWS)
    races = []
    for number in range(TWINS):
        with ledger_directory() as directory, ExitStack() as stack:
            twins = Twins.start(directory, load, opened, stack, off_first=number % 2 == 1)
            part = islice(rounds, effort.choose(full=windows, quick=QUICK_WINDOWS))
            races.append(twins.race(part, steps, clock_ns))
    return reduce(Race.and_then, races)


def _with_model(effort: Effort) -> Result:
    race = _races(
        effort, SERVING, embedded, steps=STEPS_PER_ENDING, clock_ns=time.process_time_ns, windows=MODEL_WINDOWS
    )
    on, off = race.leveled
    tokens = SEQUENCES * 1e6
    return Result(
        row=NAME,
        name=f"output tokens of the embedded model, {SEQUENCES} running: instrument on over off",
        estimate=estimate(off / on),
        unit="×",
        how=f"{HOW_TOKENS} {THROUGHPUT_GOAL.text}",
        bar=THROUGHPUT_GOAL.bar,
        quantities=(
            THROUGHPUT_GOAL.reached(off / on),
            Quantity("tokens a second of processor time, on", estimate(tokens / on), "tokens/s"),
            Quantity("tokens a second of processor time, off", estimate(tokens / off), "tokens/s"),
            Quantity("on over off, each with the time of its own compute", estimate(race.off / race.on), "×"),
            Quantity("time of the compute, on over off", estimate(race.compute_on / race.compute_off), "×"),
            Quantity("added to a step", estimate(race.added), "µs"),
        ),
    )


def _without_compute(effort: Effort, name: str, load: Load, bar: Bar | None) -> Result:
    race = _races(effort, load, no_compute, steps=STEPS_PER_WINDOW, clock_ns=time.thread_time_ns)
    return Result(
        row=NAME,
        name=f"what the instrument adds to a control step, {name}, share of the step",
        estimate=estimate(100 * race.added / race.on),
        unit="%",
        how=HOW_STEP,
        bar=bar,
        quantities=(
            Quantity(f"added to a step, {name}", estimate(race.added), "µs"),
            Quantity(f"step with the instrument, {name}", estimate(race.on), "µs"),
            Quantity(f"step without, {name}", estimate(race.off), "µs"),
        ),
    )
