"""Every query of the boards against a real Prometheus that scrapes real engines, and every panel seen non-zero."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboards.boards import annotation_queries, interpolated, panel_queries, variable_selectors
from tests.dashboards.live import JOB, Live, Series

pytestmark = [pytest.mark.slow, pytest.mark.needs("prometheus"), pytest.mark.needs("tmpfs")]

SCORECARD = (
    "Bytes per token",
    "Block size",
    "Peak active blocks",
    "Maximum concurrency",
    "Rejection rate",
    "TTFT P95",
    "Cost per request",
)
SCENARIOS: dict[str, tuple[str, ...]] = {
    "storm": (
        "Healthy",
        "Oldest sample",
        "Verdict of each engine",
        *SCORECARD,
        "Blocks, stacked to capacity",
        "Active share of each engine",
        "Wait by cause",
        "Waiting now by cause",
        "Oldest open wait",
        "Rejections by reason",
        "Ended by reason",
        "Time to first token",
        "Blocks by tenant",
        "Rejections by tenant",
        "Steps",
        "Age of the agent's samples",
    ),
    "leak": ("Leaking", "Open findings", "Leaked blocks"),
    "lost": ("Findings by kind",),
    "stalled": ("Stalled",),
    "frozen": ("Frozen", "Heartbeat age"),
    "dead": ("Unknown", "Engines down"),
}
"""Which panel is not zero in which scenario."""
PANELS = [(scenario, title) for scenario, titles in SCENARIOS.items() for title in titles]
QUERIES = panel_queries()


@pytest.fixture(scope="module", name="live")
def everything() -> Iterator[Live]:
    with Live(Path(tempfile.mkdtemp(prefix="kvledger-boards-", dir="/dev/shm"))) as live:
        yield live


def choose(expr: str, *engines: str) -> str:
    return interpolated(expr, job=[], instance=[], engine=list(engines), model=[])


def shows(found: list[Series]) -> bool:
    return any(value > 0 and math.isfinite(value) for series in found for value in series.values)


def test_every_panel_has_a_scenario() -> None:
    assert sorted(title for _, title in PANELS) == sorted({asked.by for asked in QUERIES})


def test_every_query_runs_whatever_is_chosen(live: Live) -> None:
    instance = live.agent.removeprefix("http://")
    at = live.moments["restart"]
    for asked in QUERIES + annotation_queries():
        for engines in ([], ["storm"], ["storm", "leak"]):
            expr = interpolated(asked.expr, job=[JOB], instance=[instance], engine=engines, model=["cell"])
            live.instant(expr, at)
            live.over_time(expr, at)


def test_a_choice_by_name_selects_what_choosing_all_selects(live: Live) -> None:
    (asked,) = [asked for asked in QUERIES if (asked.by, asked.ref_id) == ("Blocks, stacked to capacity", "D")]
    instance = live.agent.removeprefix("http://")
    by_name = interpolated(asked.expr, job=[JOB], instance=[instance], engine=list(SCENARIOS), model=["cell"])

    at = live.moments["storm"]
    assert live.instant(by_name, at) == live.instant(choose(asked.expr), at) != []


@pytest.mark.parametrize(("scenario", "title"), PANELS, ids=lambda each: each)
def test_a_panel_is_not_zero_in_its_scenario(live: Live, scenario: str, title: str) -> None:
    for asked in QUERIES:
        if asked.by == title:
            found = live.over_time(choose(asked.expr, scenario), live.moments[scenario])
            assert found, f"{asked} has no data"
            assert shows(found), f"{asked} is always 0: {found}"


def test_every_label_that_a_legend_names_is_there(live: Live) -> None:
    for asked in QUERIES:
        wanted = set(re.findall(r"{{(\w+)}}", asked.legend))
        for series in live.over_time(choose(asked.expr), live.moments["restart"]):
            assert wanted <= series.labels.keys(), asked


def test_each_verdict_counts_the_engine_that_has_it_and_no_other(live: Live) -> None:
    verdicts = {"leak": "Leaking", "stalled": "Stalled", "frozen": "Frozen", "dead": "Unknown"}
    exprs = {asked.by: asked.expr for asked in QUERIES if asked.by in {"Healthy", *verdicts.values()}}
    for scenario, title in verdicts.items():
        for name, expr in exprs.items():
            (series,) = live.instant(choose(expr, scenario), live.moments[scenario])
            assert series.values == (float(name == title),), f"{name} in {scenario}"


def test_the_scorecard_row_says_what_the_scorecard_says(live: Live) -> None:
    card = live.scorecard
    shown = {
        title: [
            series.values[0]
            for asked in QUERIES
            if asked.by == title
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
            assert live.over_time(choose(asked.expr, "nobody"), live.moments["restart"]) == [], asked


def test_without_traffic_ratios_and_quantiles_have_no_data(live: Live) -> None:
    for asked in QUERIES:
        if asked.by in {"Rejection rate", "TTFT P95", "Cost per request", "Time to first token"}:
            assert live.instant(choose(asked.expr, "storm"), live.moments["quiet"]) == [], asked
        if asked.by == "Time to first token":
            assert live.instant(choose(asked.expr, "dead"), live.moments["restart"]) == [], asked


def test_every_variable_lists_what_there_is(live: Live) -> None:
    listed = {name: set(live.label_values(choose(selector), label)) for name, selector, label in variable_selectors()}
    assert listed == {
        "job": {JOB},
        "instance": {live.agent.removeprefix("http://")},
        "engine": set(SCENARIOS),
        "model": {"cell"},
    }


def test_annotations_mark_the_firing_alert_and_the_restart(live: Live) -> None:
    marked = {
        asked.by: [series.labels for series in live.over_time(choose(asked.expr), live.moments["restart"])]
        for asked in annotation_queries()
    }
    fired = {(each["alertname"], each["engine"]) for each in marked["Firing alerts"]}
    assert {("KvledgerBlockLeak", "leak"), ("KvledgerEngineFrozen", "frozen")} <= fired
    assert [each["engine"] for each in marked["Engine restarts"]] == ["dead"]
