"""A tenth of every drill, in every test run. `make reliability` runs them whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvledger_engine.faults import FaultKind
from tests.reliability.clean import run_clean
from tests.reliability.faults import run_fault
from tests.reliability.kills import run_kills
from tests.reliability.promises import promised_findings
from tests.reliability.stops import run_stops
from tests.reliability.storms import run_storms
from tests.reliability.virtual import EngineHandle, virtual_engine

pytestmark = [pytest.mark.slow, pytest.mark.needs("tmpfs")]
SEEDS_PER_FAULT = 20
CLEAN_STORMS = 20


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineHandle]:
    with virtual_engine() as handle:
        yield handle


def test_the_documentation_promises_a_finding_for_every_fault_there_is() -> None:
    assert promised_findings().keys() == {kind.value for kind in FaultKind}
    assert all(promised_findings().values())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_is_found_from_the_file_as_promised_within_two_samples_after_the_grace(
    kind: FaultKind, engine: EngineHandle, memory: Path
) -> None:
    results = [run_fault(engine, kind, seed, memory / str(seed)) for seed in range(SEEDS_PER_FAULT)]
    assert [r for r in results if not r.passed] == []


@pytest.mark.timeout(900)
def test_storms_without_a_fault_raise_no_finding_and_leave_nothing_held(engine: EngineHandle, memory: Path) -> None:
    results = [run_clean(engine, seed, memory / str(seed)) for seed in range(CLEAN_STORMS)]
    assert [r for r in results if not r.passed] == []
    assert sum(r.cancellations for r in results) > 0
    assert sum(r.preemptions for r in results) > 0


@pytest.mark.e2e
@pytest.mark.timeout(900)
@pytest.mark.needs("distribution")
def test_whatever_is_killed_is_seen_dead_at_once_and_no_counter_goes_back(memory: Path) -> None:
    result = run_kills(memory, rounds=10, agent_rounds=5, seed=1)
    assert result.complaints == []
    assert result.passed
    assert result.kills_inside_publication == 5


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.needs("distribution")
def test_a_stopped_engine_is_frozen_and_an_abandoned_idle_one_holds_nothing(memory: Path) -> None:
    result = run_stops(memory, rounds=1)
    assert result.complaints == []
    assert result.passed
    assert result.idle_aborts == 1


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.needs("distribution")
def test_a_storm_on_the_embedded_model_raises_no_finding_and_leaves_nothing_held(memory: Path) -> None:
    result = run_storms(memory, requests=500)
    assert result.complaints == []
    assert result.passed
