"""What the agent says of real engines under load. A handful of scenarios; all of them with `-m drill`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kvledger.words import Reason
from tests.verdict.__main__ import REPORT
from tests.verdict.heldout import HELD_OUT
from tests.verdict.live import Outcome, run
from tests.verdict.report import confusion, reasons_table, replaced
from tests.verdict.scenario import Scenario
from tests.verdict.scenarios import SCENARIOS

pytestmark = [pytest.mark.needs("tmpfs"), pytest.mark.slow, pytest.mark.e2e]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
HANDFUL = (
    "two long requests and short ones",
    "refused at the door, one tenant sending most",
    "four slots",
    "a long prompt in small pieces",
    "a head that does not fit",
    "steps of 100 ms",
    "requests come and go",
)
AT_ONCE = 3
TOLD_APART = {
    "pool full of long requests": {Reason.LONG_REQUESTS},
    "pool full of one tenant's": {Reason.ONE_TENANT},
    "pool held by retained or shared prefixes": {Reason.RETAINED_PREFIXES, Reason.SHARED_PREFIXES},
    "leak": {Reason.LEAK},
    "max_num_seqs too low": {Reason.BATCH_SLOTS},
    "token budget too low": {Reason.TOKEN_BUDGET},
    "head-of-line blocking": {Reason.HEAD_OF_LINE},
    "preemption thrash": {Reason.PREEMPTION_THRASH},
    "compute saturated with the pool half empty": {Reason.COMPUTE},
    "allocation slow though blocks are free": {Reason.SLOW_ALLOCATION},
    "stalled": {Reason.NO_PROGRESS},
    "frozen": {Reason.NO_HEARTBEAT},
    "overload at the door": {Reason.OVERLOAD},
    "overload at the door by one tenant": {Reason.TENANT_OVERLOAD},
    "healthy under full use": {Reason.FULL_USE},
}


def once(scenario: Scenario) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="kvledger-verdict-", dir="/dev/shm") as directory:
        return run(scenario, Path(directory))


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[Outcome]]]:
    """The handful, several at once: a run waits most of its time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(once, BY_NAME[name]) for name in HANDFUL}


@pytest.mark.parametrize("name", HANDFUL)
def test_an_engine_under_load_is_taken_for_what_it_is(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    outcome = outcomes[name].result(timeout=200)

    assert outcome.reason == outcome.scenario.reason.word, (outcome.said, outcome.last)
    assert any(character.isdigit() for character in outcome.last["evidence"])


@pytest.mark.drill
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in HANDFUL])
def test_every_scenario_is_taken_for_what_it_is(name: str) -> None:
    outcome = once(BY_NAME[name])

    assert outcome.reason == outcome.scenario.reason.word, (outcome.said, outcome.last)


def test_the_page_shows_the_reasons_as_they_are_and_every_scenario() -> None:
    page = REPORT.read_text()

    assert replaced(page, "reasons", reasons_table()) == page, "python -m tests.verdict writes it anew"
    assert all(f"| {scenario.name}: " in page for scenario in (*SCENARIOS, *HELD_OUT))


def test_each_reason_has_two_scenarios_or_more_and_each_scenario_its_neighbours() -> None:
    reasons = [scenario.reason for scenario in SCENARIOS]

    assert len(BY_NAME) == len(SCENARIOS) >= 25
    assert all(reasons.count(reason) >= 2 for reason in Reason)
    assert all(scenario.neighbours and scenario.reason not in scenario.neighbours for scenario in SCENARIOS)


def test_each_thing_that_is_told_apart_has_two_scenarios_none_of_which_was_taken_for_a_neighbour() -> None:
    """By the committed runs: every neighbour has scenarios of its own, and the two were never mixed up."""
    said = confusion(REPORT.read_text())
    told_apart = {(scenario.reason, neighbour) for scenario in SCENARIOS for neighbour in scenario.neighbours}

    for thing, reasons in TOLD_APART.items():
        assert sum(scenario.reason in reasons for scenario in SCENARIOS) >= 2, thing
        assert any(reason in reasons for reason, _ in told_apart), thing
    for reason, neighbour in told_apart:
        assert said[reason.word, reason.word] >= 4
        assert (said[reason.word, neighbour.word], said[neighbour.word, reason.word]) == (0, 0), (reason, neighbour)


def test_what_no_threshold_was_chosen_by_differs_from_what_they_were_chosen_by() -> None:
    tuned = [(scenario.flags, scenario.streams, scenario.odd, scenario.deed) for scenario in SCENARIOS]

    assert len({scenario.name for scenario in HELD_OUT} - BY_NAME.keys()) == len(HELD_OUT) >= 10
    assert {scenario.reason for scenario in HELD_OUT} == set(Reason)
    for scenario in HELD_OUT:
        assert (scenario.flags, scenario.streams, scenario.odd, scenario.deed) not in tuned
        assert scenario.neighbours
        assert scenario.reason not in scenario.neighbours
