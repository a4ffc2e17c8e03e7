"""Off is off, and the same engine otherwise: whatever the instrument writes stays empty, and no token changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from bench import instrument
from bench.effort import Effort
from bench.errors import BenchError
from bench.instrument import Race, Twins
from bench.steady import Load, SteadyEngine
from bench.tmpfs import ledger_directory
from kvledger.layout import CONTROL_INDEX
from kvledger.peaks import Peaks
from kvledger.writer import Ledger
from kvledger_engine.computes import Computing, ModelOptions, open_compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop

pytestmark = pytest.mark.needs("tmpfs")

SHORT = Load(prompt_tokens=(20, 60), max_model_len_tokens=128, output_tokens=24)
CLOCKS_AND_STAMPS = ("share_clock", "share_since_ns", "changed_seq")
OF_A_REQUEST = ("changed_seq", "wait_base", "wait_seconds", "first_block_ns", "first_token_ns", "last_token_ns")


def cells(config: EngineConfig) -> Computing:
    """A model whose tokens depend on every block being the right one."""
    return open_compute(config, ModelOptions(source="cell"))


@pytest.fixture
def twins() -> Iterator[Twins]:
    with ledger_directory() as directory, ExitStack() as stack:
        twins = Twins.start(directory, SHORT, cells, stack)
        for _ in range(60):
            twins.on.step()
            twins.off.step()
        yield twins


def file_of(ledger: Ledger, section: str) -> np.ndarray:
    """A section as it lies in the file, whatever stands in its place in the writer."""
    found = ledger.layout.sections[section]
    return np.frombuffer(ledger.image, found.dtype, np.prod(found.shape, dtype=int), found.offset)


def instrument_of(engine: SteadyEngine) -> dict[str, bool]:
    """Which parts of the instrument have left a trace."""
    ledger, stats = engine.ledger, engine.ledger.stats
    sections = [f"block.{name}" for name in CLOCKS_AND_STAMPS] + [f"slot.{name}" for name in OF_A_REQUEST]
    traces = {name: bool(file_of(ledger, name).any()) for name in sections}
    for ring in ("events", "summaries"):
        traces[f"ring.{ring}"] = int(ledger.control[CONTROL_INDEX[f"{ring}_head"]]) > 0
    traces["ring.peaks"] = bool(file_of(ledger, "ring.peaks")["second"].any())
    traces["wait clock"] = bool(stats.wait_clock.any())
    traces["block-seconds"] = bool(stats.tenant_counter("block_seconds_total").any())
    spans = stats.plan.histograms.values()
    traces["histograms"] = any(stats.array[span.index : span.index + span.size].any() for span in spans)
    return traces


def test_off_leaves_no_trace_of_the_instrument_and_on_leaves_every_one(twins: Twins) -> None:
    on, off = instrument_of(twins.on), instrument_of(twins.off)
    # Nobody waits here for anything but a step that runs, which is counted on the request itself.
    assert {name for name, left in on.items() if not left} <= {"wait clock", "slot.wait_base"}
    assert not [name for name, left in off.items() if left]


def test_off_computes_the_same_tokens_in_the_same_blocks_and_counts_them(twins: Twins) -> None:
    assert twins.on.live_tokens() == twins.off.live_tokens()
    on, off = twins.on.ledger, twins.off.ledger
    for name in ("ref_count", "state", "owner", "filled_tokens", "evict_ticket"):
        assert np.array_equal(getattr(on.blocks, name), getattr(off.blocks, name)), name
    for key, index in on.stats.plan.counters.items():
        if key[0] != "sharing_overhead_seconds_total":
            assert on.stats.values[index] == off.stats.values[off.stats.plan.counters[key]], key
    ended = on.stats.tenant_counter("requests_total", finish_reason="length")
    assert ended.sum() >= 64
    assert np.array_equal(ended, off.stats.tenant_counter("requests_total", finish_reason="length"))


def test_an_engine_built_afterwards_has_its_instrument(twins: Twins, tmp_path: Path) -> None:
    with ledger_directory() as directory:
        later = SteadyEngine(directory, sequences=4, load=SHORT, open_compute=cells)
        later.step()
        assert type(later.ledger) is Ledger
        assert type(later.loop) is EngineLoop
        assert instrument_of(later)["histograms"]
        later.close()


def test_twins_that_drew_different_tokens_are_no_measurement(twins: Twins) -> None:
    twins.off.loop._requests.tokens[:] += 1
    with pytest.raises(BenchError, match="drew other tokens"):
        twins.race(range(3), 1, lambda: 0)


def test_a_compute_that_is_slower_beside_the_instrument_is_not_leveled_away() -> None:
    noise = np.random.default_rng(0).normal(1000, 20, (2, 200))
    compute_on, compute_off = noise[:2]
    race = Race(compute_on + 300, compute_off + 200, compute_on, compute_off)
    on, off = race.leveled
    assert on - off == pytest.approx(100)
    with pytest.raises(BenchError, match="as long beside the instrument"):
        _ = Race(race.on + 20, race.off, compute_on + 20, compute_off).leveled


def test_who_comes_second_has_no_say_in_what_the_instrument_costs() -> None:
    second = np.array([0.0, 100.0] * 50 + [70.0])
    race = Race(1040 + second, 1100 - second, np.full(101, 900.0), np.full(101, 900.0)).in_both_orders()
    assert race.on == pytest.approx([1090] * 50)
    assert race.added == pytest.approx([40] * 50)


def test_what_the_instrument_adds_is_measured_against_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Peaks.note

    def slow(peaks: Peaks, now_ns: int, active: float, used: float) -> None:
        note(peaks, now_ns, active, used)
        _ = list(range(20_000))

    monkeypatch.setattr(Peaks, "note", slow)
    name, load, bar = instrument.CASES[0]
    result = instrument._without_compute(Effort(quick=True), name, load, bar)
    assert result.estimate.value > 20
    assert result.met is False
