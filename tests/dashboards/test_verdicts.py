"""Every query of every board in every scenario of the verdict, on a real Prometheus. Long: only with `-m drill`."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import pytest

from kvledger.reasons import BY_REASON
from tests.alerts.stack import Prometheus, wait_for
from tests.dashboards.answers import PARAMETERS, Answers, choose
from tests.dashboards.boards import annotation_queries, panel_queries
from tests.verdict.live import watched
from tests.verdict.scenarios import SCENARIOS

pytestmark = [pytest.mark.drill, pytest.mark.needs("prometheus"), pytest.mark.needs("tmpfs")]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
SEEN_SECONDS = 60.0


@pytest.mark.parametrize("name", BY_NAME)
def test_in_every_scenario_every_query_runs_and_the_board_says_verdict_and_reason(name: str) -> None:
    scenario = BY_NAME[name]
    reason, verdict = scenario.reason.word, BY_REASON[scenario.reason].verdict.word
    asked = {(each.by, each.ref_id): each.expr for each in panel_queries() if each.board == "kvledger-oncall"}
    with tempfile.TemporaryDirectory(prefix="kvledger-boards-", dir="/dev/shm") as place:
        ledgers = Path(place, "ledgers")
        ledgers.mkdir()
        with (
            watched(scenario, ledgers) as agent,
            Prometheus(Path(place, "prometheus"), agent=agent.url, parameters=PARAMETERS) as server,
        ):
            answers = Answers(prometheus=server.url)
            table = choose(asked["Verdict of each engine", "A"])
            tile = choose(asked[verdict.replace("_", " ").capitalize(), "A"])

            def at() -> float | None:
                now = time.time()
                said = {row.labels["verdict_reason"] for row in answers.instant(table, now)}
                return (
                    now if reason in said and [each.values for each in answers.instant(tile, now)] == [(1.0,)] else None
                )

            wait_for(at, f"{reason} on the board", SEEN_SECONDS)
            until = time.time()
            for each in panel_queries() + annotation_queries():
                for series in answers.over_time(choose(each.expr), until):
                    assert all(map(math.isfinite, series.values)), (str(each), series)
