"""The step-time model: parsed strictly, slept on a real clock, advanced on a virtual one."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvledger.clock import RealClock, VirtualClock
from kvledger.views import I32
from kvledger_engine.batch import Batch
from kvledger_engine.errors import BadConfig
from kvledger_engine.steptime import StepTime, TimedCompute


def batch(counts: list[int]) -> Batch:
    """A batch of rows with so many tokens each."""
    none = np.zeros(0, np.int32)
    return Batch(
        block_size_tokens=4,
        slots=np.arange(len(counts), dtype=np.int32),
        starts=np.zeros(len(counts), np.int32),
        counts=np.array(counts, np.int32),
        tokens=np.zeros(sum(counts), np.int32),
        table_blocks=none,
        table_offsets=none,
        copy_source=none,
        copy_target=none,
        sample_entry=none,
        sample_slots=none,
        sample_seed=np.zeros(0, np.uint64),
        sample_temperature=np.zeros(0, np.float32),
    )


class Slow:
    """A compute that takes virtual time of its own."""

    def __init__(self, clock: VirtualClock, taken_ns: int) -> None:
        self._clock, self._taken_ns = clock, taken_ns

    def execute(self, batch: Batch) -> I32:
        self._clock.advance(self._taken_ns)
        return np.zeros(0, np.int32)


def test_a_text_becomes_the_model_it_describes() -> None:
    model = StepTime.parse("base=2ms, token=20us,seq=50.5us")
    assert (model.base, model.token, model.seq) == pytest.approx((2e-3, 20e-6, 50.5e-6))
    assert model.seconds(batch([1, 1, 30])) == pytest.approx(2e-3 + 30 * 20e-6 + 2 * 50.5e-6)
    assert StepTime.parse("") == StepTime()
    assert StepTime.parse("seq=3ns") == StepTime(seq=3e-9)


@pytest.mark.parametrize(
    "text", ["2ms", "base=2", "base=2m", "base=-2ms", "bass=2ms", "base=2ms,base=3ms", "base=2ms;token=1us"]
)
def test_a_text_that_is_not_understood_is_refused_with_the_part_that_is_not(text: str) -> None:
    with pytest.raises(BadConfig, match="step time"):
        StepTime.parse(text)


@pytest.mark.parametrize(("own_ns", "total_ns"), [(0, 5_000_000), (2_000_000, 5_000_000), (7_000_000, 7_000_000)])
def test_a_virtual_clock_is_advanced_by_what_the_compute_did_not_take(own_ns: int, total_ns: int) -> None:
    clock = VirtualClock()
    before = clock.now_ns()
    TimedCompute(Slow(clock, own_ns), StepTime(base=5e-3), clock).execute(batch([1]))
    assert clock.now_ns() - before == total_ns


def test_a_real_clock_is_slept_on() -> None:
    before = time.monotonic()
    TimedCompute(Slow(VirtualClock(), 0), StepTime(base=0.02), RealClock()).execute(batch([1]))
    assert time.monotonic() - before >= 0.02
