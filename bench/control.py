"""Row `control`: what the control plane takes of a device step, by the size of the running set."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from bench.effort import Effort
from bench.estimate import Windows, estimate
from bench.interleave import interleave, per_call
from bench.result import Quantity, Result
from bench.steady import ENDLESS, Load, SteadyEngine
from bench.tmpfs import ledger_directory

NAME = "control"
DEVICE_STEP_MICROSECONDS = 15_000.0
STEPS_PER_WINDOW = 10
HOW = """Schedule, two publications and apply, with a compute that does nothing, on a ledger file on tmpfs and the real
clock. Every step gives each sequence one token, so microseconds per token are those of a step over the sequences.
Where sequences end, the time includes their release and the submission, admission and prefill of those that follow."""


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    sequences: int
    load: Load = ENDLESS


CASES = (
    _Case("64 decoding", 64),
    _Case("128 decoding", 128),
    _Case("64 running, one ending every 4 steps", 64, Load(output_tokens=256)),
)


def measure(effort: Effort) -> list[Result]:
    """Windows of ten steps of each engine, in turns."""
    with ledger_directory() as directory, ExitStack() as stack:
        engines = {case.name: SteadyEngine(directory, sequences=case.sequences, load=case.load) for case in CASES}
        for engine in engines.values():
            stack.callback(engine.close)
        windows = {name: per_call(engine.step, STEPS_PER_WINDOW) for name, engine in engines.items()}
        figures = interleave(effort.rounds(full=200, quick=15), windows)
        for engine in engines.values():
            engine.require_steady()
    whole = CASES[1]
    return [*(_result(case, figures[case.name]) for case in CASES), _time(whole, figures[whole.name])]


def _time(case: _Case, microseconds: Windows) -> Result:
    name = f"control step, {case.name} (machine-dependent)"
    return Result(row=NAME, name=name, estimate=estimate(microseconds), unit="µs", how=HOW)


def _result(case: _Case, microseconds: Windows) -> Result:
    return Result(
        row=NAME,
        name=f"control step, {case.name}, share of a {DEVICE_STEP_MICROSECONDS / 1000:.0f} ms device step",
        estimate=estimate(100 * microseconds / DEVICE_STEP_MICROSECONDS),
        unit="%",
        how=HOW,
        quantities=(
            Quantity(f"step, {case.name}", estimate(microseconds), "µs"),
            Quantity(f"per token, {case.name}", estimate(microseconds / case.sequences), "µs"),
        ),
    )
