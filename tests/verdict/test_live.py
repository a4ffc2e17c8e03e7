"""What the agent says of real engines under load. A handful of scenarios; all of them with `-m drill`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kvledger.words import Reason
from tests.verdict.__main__ import REPORT
from tests.verdict.live import Outcome, run
from tests.verdict.report import reasons_table, replaced
from tests.verdict.scenario import Scenario
from tests.verdict.scenarios import SCENARIOS

pytestmark = [pytest.mark.needs("tmpfs"), pytest.mark.slow, pytest.mark.e2e]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
HANDFUL = (
    "two long requests and short ones",
    "refused at the door, one tenant holding most",
    "four slots",
    "a head that does not fit",
    "steps of 100 ms",
    "requests come and go",
)
AT_ONCE = 3


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
    assert all(f"| {name}: " in page for name in BY_NAME)


def test_each_reason_has_two_scenarios_or_more_and_each_scenario_its_neighbours() -> None:
    reasons = [scenario.reason for scenario in SCENARIOS]

    assert len(BY_NAME) == len(SCENARIOS) >= 25
    assert all(reasons.count(reason) >= 2 for reason in Reason)
    assert all(scenario.neighbours and scenario.reason not in scenario.neighbours for scenario in SCENARIOS)
