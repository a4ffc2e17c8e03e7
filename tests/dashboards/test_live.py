"""Every query of the boards against a real Prometheus that scrapes real engines, and every panel seen non-zero."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvledger.reasons import BY_REASON
from kvledger.words import Reason, Verdict
from tests.dashboards.answers import SCRAPE_SECONDS, WINDOW, Series, choose
from tests.dashboards.boards import annotation_queries, interpolated, panel_queries, variable_selectors
from tests.dashboards.live import ENGINES, JOB, Live
from tests.dashboards.scenarios import VERDICTS, hold_storm, provoke
from tests.dashboards.shown import EVERYTHING, SCORECARD, SHOWN

pytestmark = [pytest.mark.slow, pytest.mark.needs("prometheus"), pytest.mark.needs("tmpfs")]

PANELS = sorted({(board, title) for board, scenes in SHOWN.items() for titles in scenes.values() for title in titles})
QUERIES = panel_queries()
MODELS = {"cell", "cramped", "acme/lark-8b"}
SHOWN_SECONDS = 60.0
"""How long panels are waited for once every engine is in its trouble."""


@pytest.fixture(scope="module", name="live")
def everything() -> Iterator[Live]:
    with Live(directory=Path(tempfile.mkdtemp(prefix="kvledger-boards-", dir="/dev/shm"))) as live:
        provoke(live)
        wait_until_shown(live)
        hold_storm(live)
        yield live


def wait_until_shown(live: Live) -> None:
    """Come back once every panel has shown what it is there for, or after a while: then its test says which did not."""
    deadline = time.monotonic() + SHOWN_SECONDS
    pending = PANELS
    while pending and time.monotonic() < deadline:
        now = time.time()
        pending = [each for each in pending if silent(live, *each, until=now)]
        time.sleep(SCRAPE_SECONDS if pending else 0)
    live.moments["shown"] = time.time()


def silent(live: Live, board: str, title: str, *, until: float) -> list[str]:
    """What should have shown and did not: queries of the panel in none of its scenarios, scenarios in no query."""
    queries = [asked for asked in QUERIES if (asked.board, asked.by) == (board, title)]
    scenarios = [scenario for scenario, titles in SHOWN[board].items() if title in titles]
    seen = {
        (str(asked), scenario)
        for asked in queries
        for scenario in scenarios
        if shows(live.over_time(choose(asked.expr, *([] if scenario == EVERYTHING else [scenario])), until))
    }
    wanted = [*map(str, queries), *scenarios]
    return [each for each in wanted if not any(each in pair for pair in seen)]


def shows(found: list[Series]) -> bool:
    return any(value > 0 and math.isfinite(value) for series in found for value in series.values)


def test_every_panel_has_a_scenario() -> None:
    assert sorted({(asked.board, asked.by) for asked in QUERIES}) == PANELS


def test_every_query_runs_whatever_is_chosen(live: Live) -> None:
    instance = live.agent.removeprefix("http://")
    at = live.moments["shown"]
    for asked in QUERIES + annotation_queries():
        for engines in ([], ["storm", "leak"]):
            expr = interpolated(
                asked.expr, job=[JOB], instance=[instance], engine=engines, model=["cell"], recorded_window=WINDOW
            )
            live.instant(expr, at)
            live.over_time(expr, at)


def test_a_choice_by_name_selects_what_choosing_all_selects(live: Live) -> None:
    (asked,) = [asked for asked in QUERIES if (asked.by, asked.ref_id) == ("Blocks, stacked to capacity", "D")]
    instance = live.agent.removeprefix("http://")
    by_name = interpolated(asked.expr, job=[JOB], instance=[instance], engine=list(ENGINES), model=list(MODELS))

    at = live.moments["storm"]
    assert live.instant(by_name, at) == live.instant(choose(asked.expr), at) != []


@pytest.mark.parametrize(("board", "title"), PANELS)
def test_a_panel_is_not_zero_in_its_scenarios(live: Live, board: str, title: str) -> None:
    assert silent(live, board, title, until=live.moments["shown"]) == []


def test_every_label_that_a_legend_names_is_there(live: Live) -> None:
    for asked in QUERIES:
        wanted = set(re.findall(r"{{(\w+)}}", asked.legend))
        for series in live.over_time(choose(asked.expr), live.moments["shown"]):
            assert wanted <= series.labels.keys(), asked


def test_each_verdict_counts_the_engine_that_has_it_and_no_other(live: Live) -> None:
    titles = {word: word.replace("_", " ").capitalize() for word in Verdict.words()}
    exprs = {asked.by: asked.expr for asked in QUERIES if asked.by in titles.values()}
    assert len(exprs) == len(titles)
    for scenario, verdict in VERDICTS.items():
        for name, expr in exprs.items():
            (series,) = live.instant(choose(expr, scenario), live.moments[scenario])
            assert series.values == (float(name == titles[verdict]),), f"{name} in {scenario}"


def test_the_table_of_verdicts_has_one_row_for_each_core_with_the_reason_in_three_columns(live: Live) -> None:
    (asked,) = [asked for asked in QUERIES if asked.by == "Verdict of each engine"]
    for scenario, verdict in VERDICTS.items():
        (row,) = live.instant(choose(asked.expr, scenario), live.moments[scenario])
        reason = row.labels["verdict_reason"]
        assert row.labels["verdict"] == row.labels["action"] == reason
        assert BY_REASON[Reason[reason.upper()]].verdict.word == verdict
    rows = live.instant(choose(asked.expr), live.moments["shown"])
    assert {row.labels["engine"] for row in rows} == ENGINES


def test_the_scorecard_row_says_what_the_scorecard_says(live: Live) -> None:
    card = live.scorecard
    shown = {
        title: [
            series.values[0]
            for asked in QUERIES
            if (asked.board, asked.by) == ("kvledger-oncall", title)
            for series in live.instant(choose(asked.expr, "storm"), live.moments["still"])
        ]
        for title in SCORECARD
    }
    assert shown == {
        "Bytes per token": [card["bytes_per_token"]],
        "Block size": list(card["block_size_tokens"].values()),
        "Peak active blocks": [card["peak_active_blocks"]],
        "Maximum concurrency": [
            *(pytest.approx(fit["requests"]) for fit in card["concurrency"]["fits"]),
            card["concurrency"]["reached"],
        ],
        "Rejection rate": [pytest.approx(card["rejection_ratio"])],
        "TTFT P95": [pytest.approx(card["ttft_p95_seconds"])],
        "Cost per request": [pytest.approx(card["cost_per_request"])],
    }


def test_an_engine_that_is_not_there_has_no_data_and_not_zero(live: Live) -> None:
    for asked in QUERIES:
        if "$engine" in asked.expr:
            assert live.over_time(choose(asked.expr, "nobody"), live.moments["shown"]) == [], asked


def test_without_traffic_ratios_and_quantiles_have_no_data(live: Live) -> None:
    for asked in QUERIES:
        if asked.by in {"Rejection rate", "TTFT P95", "Cost per request", "Time to first token"}:
            assert live.instant(choose(asked.expr, "storm"), live.moments["quiet"]) == [], asked
        if asked.by == "Time to first token":
            assert live.instant(choose(asked.expr, "dead"), live.moments["restart"]) == [], asked


def test_every_variable_lists_what_there_is(live: Live) -> None:
    wanted = {"job": {JOB}, "instance": {live.agent.removeprefix("http://")}, "engine": ENGINES, "model": MODELS}
    for board in SHOWN:
        for name, selector, label in variable_selectors(board):
            assert set(live.label_values(choose(selector), label)) == wanted[name], (board, name)


def test_annotations_mark_the_firing_alert_and_the_restart(live: Live) -> None:
    marked = {
        asked.by: [series.labels for series in live.over_time(choose(asked.expr), live.moments["restart"])]
        for asked in annotation_queries()
        if asked.board == "kvledger-oncall"
    }
    fired = {(each["alertname"], each.get("engine")) for each in marked["Firing alerts"]}
    assert {("KvledgerBlockLeak", "leak"), ("KvledgerEngineFrozen", "frozen")} <= fired
    assert [each["engine"] for each in marked["Engine restarts"]] == ["dead"]
    opened = {(each["engine"], each["kind"]) for each in marked["Leaks and other findings"]}
    assert ("leak", "excess_reference") in opened
