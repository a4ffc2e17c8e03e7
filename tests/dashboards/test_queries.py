"""The boards' queries against the catalogue and against the golden `/metrics` page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvledger.catalog import FAMILIES
from kvledger.families.family import Family, Kind, Scope
from kvledger_alerts.fleet_rows import fleet_rows
from kvledger_alerts.table import Parameters
from kvledger_dashboards.queries import fleet
from kvledger_dashboards.queries.selection import UnknownSeries, select
from tests.dashboards.boards import Asked, annotation_queries, matchers, panel_queries, parsed, variable_selectors

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"
TARGET_LABELS = {"job", "instance"}
NOT_OURS = {"ALERTS"}
"""Prometheus' own series."""
ASKED = panel_queries() + annotation_queries()


def exposed() -> dict[str, Family]:
    """Every series name a scrape can give, and its family."""
    parts = ("_bucket", "_sum", "_count")
    return {f.exposed_name + part: f for f in FAMILIES for part in (parts if f.kind is Kind.HISTOGRAM else ("",))}


def recorded() -> dict[str, set[str]]:
    """Every series that the fleet's rules record, and the labels that it keeps."""
    kept = {row.record: re.search(r"by \(([^)]+)\)", row.expression) for row in fleet_rows(Parameters())}
    return {record: set(found[1].split(", ")) for record, found in kept.items() if found}


SERIES, RECORDED = exposed(), recorded()


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_every_series_is_in_the_catalogue_with_the_labels_and_values_that_are_used(asked: Asked) -> None:
    found = parsed(asked.expr)
    known: set[str] = set(TARGET_LABELS)
    for selector in found.selectors:
        if selector.name in NOT_OURS:
            continue
        if ":" in str(selector.name):
            labels = RECORDED[str(selector.name)]
            assert set(matchers(selector)) <= labels
            known |= labels
            continue
        family = SERIES[str(selector.name)]
        labels = {*family.label_names, *TARGET_LABELS, *(("le",) if family.kind is Kind.HISTOGRAM else ())}
        known |= labels
        chosen = matchers(selector)
        assert set(chosen) <= labels
        for label in family.labels:
            if label.name in chosen and label.values is not None:
                wanted = chosen[label.name].removeprefix("=")
                assert set(wanted.removeprefix("~").split("|")) <= set(label.values)
    assert found.by <= known


@pytest.mark.parametrize("asked", panel_queries(), ids=str)
def test_every_query_about_engines_follows_the_chosen_engines_and_models(asked: Asked) -> None:
    for selector in parsed(asked.expr).selectors:
        if str(selector.name) in RECORDED:
            continue
        chosen = matchers(selector)
        about_engines = SERIES[str(selector.name)].scope is not Scope.AGENT
        assert (chosen.get("engine") == "=~$engine") is about_engines
        assert (chosen.get("model") == "=~$model") is about_engines


def test_every_variable_lists_a_label_of_a_series_that_exists() -> None:
    for _, selector, label in variable_selectors():
        (chosen,) = parsed(selector).selectors
        if str(chosen.name) in RECORDED:
            assert label in RECORDED[str(chosen.name)]
            continue
        assert label in {*SERIES[str(chosen.name)].label_names, *TARGET_LABELS}


def test_every_series_of_the_boards_is_on_the_golden_page() -> None:
    page = {s.name for family in text_string_to_metric_families(GOLDEN.read_text()) for s in family.samples}
    used = {str(selector.name) for asked in ASKED for selector in parsed(asked.expr).selectors}
    used -= NOT_OURS | RECORDED.keys()

    assert used <= page


def test_a_family_or_a_label_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownSeries, match="'pool_block' is not in"):
        select("pool_block")
    with pytest.raises(UnknownSeries, match=r"pool_blocks has no label \['status'\]"):
        select("pool_blocks", status="free")
    with pytest.raises(UnknownSeries, match=r"pool_blocks has no state \['busy'\]"):
        select("pool_blocks", state=("free", "busy"))
    with pytest.raises(UnknownSeries, match="'pool_block' is not in"):
        fleet.recorded("model", "pool_block", "sum")
