"""The rules of Grafana's dashboard-linter, and a few of our own, over the committed boards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.models import units

from kvledger.catalog import BY_NAME
from kvledger.reasons import ROWS
from kvledger.words import Reason, Verdict, WaitCause
from kvledger_alerts.table import Parameters
from tests.dashboards.boards import (
    BOARDS,
    CUMULATIVE,
    RATE_INTERVAL,
    Asked,
    annotation_queries,
    matchers,
    panel_queries,
    panels,
    parsed,
    variable_selectors,
)

QUERIES = panel_queries()


def named(*kinds: str) -> list[Any]:
    """The panels of these types, all without one, each under its board's and its own name."""
    found = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
    return [
        pytest.param(p, id=f"{name}-{p['id']}-{p['title']}") for name, p in found if p["type"] in kinds or not kinds
    ]


PANELS = named()
UNITS = {value for name, value in vars(units).items() if name[0].isupper()}
PARTS = set(BY_NAME["verdict_share"].labels[0].values or ())
DOCS = Path(__file__).parents[2] / "docs/boards.md"
PICTURE_BYTES = 350_000
QUIET = "#34383F"
MADE_LABELS = {"verdict", "action"}
"""Labels that a query makes of others."""
FLEET = "kvledger-fleet"
CHOICES, FLEET_CHOICES = ["job", "instance", "engine", "model"], ["job", "model"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@pytest.fixture(params=BOARDS.values(), ids=list(BOARDS), name="board")
def each_board(request: pytest.FixtureRequest) -> dict[str, Any]:
    board: dict[str, Any] = request.param
    return board


def variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def is_recorded(name: str) -> bool:
    """Whether a series is one that a recording rule makes."""
    return ":" in name


def test_there_is_something_to_check() -> None:
    assert BOARDS.keys() == {f"kvledger-{name}" for name in ("fleet", "itself", "oncall", "pool", "requests")}
    assert len(QUERIES) > 150


def test_a_board_cannot_be_edited_and_shows_utc(board: dict[str, Any]) -> None:
    assert board["editable"] is False
    assert board["timezone"] == "utc"
    assert board["schemaVersion"] == 42, "Grafana provisions classic JSON from files, not v2"
    assert board["uid"].startswith("kvledger-")
    assert board["description"]


def test_one_datasource_variable_chooses_a_prometheus(board: dict[str, Any]) -> None:
    chosen = [variable for variable in variables(board).values() if variable["type"] == "datasource"]
    assert [(v["name"], v["label"], v["query"]) for v in chosen] == [("datasource", "Data source", "prometheus")]


def test_a_variable_takes_several_values_all_at_first_and_asks_again_with_the_time_range(board: dict[str, Any]) -> None:
    chosen = [variable for variable in variables(board).values() if variable["type"] == "query"]
    assert [variable["name"] for variable in chosen] == (FLEET_CHOICES if board["uid"] == FLEET else CHOICES)
    for variable in chosen:
        wanted = {
            "label": variable["name"],
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "refresh": 2,
            "datasource": DATASOURCE,
        }
        assert {key: variable[key] for key in wanted} == wanted
        assert variable["current"]["value"] == "$__all"


def test_boards_lead_to_each_other_the_explorer_and_the_runbook_with_time_and_choices(board: dict[str, Any]) -> None:
    boards, explorer, runbook = board["links"]
    assert (boards["type"], boards["tags"], boards["keepTime"], boards["includeVars"]) == (
        "dashboards", board["tags"], True, True,
    )  # fmt: skip
    assert (explorer["url"], explorer["includeVars"]) == ("${explorer}", True)
    assert runbook["url"] == "${runbook}"
    hidden = {name: each["query"] for name, each in variables(board).items() if each["type"] == "textbox"}
    assert hidden == {"explorer": "http://127.0.0.1:8501", "runbook": Parameters().runbook_base}
    assert all(variables(board)[name]["hide"] == 2 for name in hidden)


def test_a_panel_that_leads_on_leads_to_a_board_that_there_is() -> None:
    urls = [link["url"] for board in BOARDS.values() for panel in panels(board) for link in panel.get("links", [])]
    assert len(urls) >= 6
    for url in urls:
        found = re.fullmatch(r"/d/([\w-]+)\?\$\{__url_time_range\}&\$\{__all_variables\}", url)
        assert found, url
        assert found[1] in BOARDS


def test_the_query_of_every_variable_parses() -> None:
    found = list(variable_selectors())
    assert {variable for variable, _, _ in found} == set(CHOICES)
    for variable, selector, label in found:
        assert variable == label
        assert parsed(selector).selectors


def test_links_and_annotations_are_shown_above_the_board_and_not_in_the_controls_menu(board: dict[str, Any]) -> None:
    for each in (*board["links"], *board["annotations"]["list"]):
        assert "placement" not in each
    assert all(each["datasource"] == DATASOURCE and each["enable"] for each in board["annotations"]["list"])


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows_what_to_do_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert len(panel["description"].split()) >= 12
    assert panel["description"].endswith(".")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    assert unit in UNITS or re.fullmatch(r"suffix: (/\w+|cores|(tokens|blocks)/s)", unit), (
        "the latter is a unit of our own"
    )
    assert panel["datasource"] == DATASOURCE
    assert panel["targets"]
    assert all(target["datasource"] == DATASOURCE for target in panel["targets"])


@pytest.mark.parametrize("panel", PANELS)
def test_no_data_is_shown_as_no_data(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["noValue"] == "No data"
    assert not defaults.get("mappings")
    assert not defaults.get("custom", {}).get("spanNulls", False)
    for target in panel["targets"]:
        assert not re.search(r"\b(or|vector|absent)\b", target["expr"]), "a query that makes up a value"


@pytest.mark.parametrize("panel", PANELS)
def test_graphs_have_a_legend_and_stats_show_the_last_value(panel: dict[str, Any]) -> None:
    options = panel["options"]
    if panel["type"] == "timeseries":
        assert options["legend"]["showLegend"] is True
        wide = panel["gridPos"]["w"] >= 12
        assert options["legend"]["displayMode"] == ("table" if wide else "list")
        assert bool(options["legend"]["calcs"]) == wide, "values leave no room for the names in a narrow panel"
        assert options["tooltip"]["mode"] == "multi"
    elif panel["type"] == "table":
        (target,) = panel["targets"]
        assert (target["format"], target["instant"]) == ("table", True)
    else:
        assert options["reduceOptions"]["calcs"] == ["lastNotNull"]
        assert all(target["instant"] and not target.get("range") for target in panel["targets"])


@pytest.mark.parametrize("panel", PANELS)
def test_an_override_names_a_series_that_the_panel_has(panel: dict[str, Any]) -> None:
    legends = " ".join(target["legendFormat"] for target in panel["targets"])
    for override in panel["fieldConfig"]["overrides"]:
        name = override["matcher"]["options"]
        if override["matcher"]["id"] == "byName" and "{{" not in legends and panel["type"] != "table":
            assert name in legends


def test_a_cause_has_its_own_colour_and_the_same_one_in_every_panel_of_waits() -> None:
    found = [
        {each["matcher"]["options"]: each["properties"][0]["value"]["fixedColor"] for each in overrides}
        for panel in panels(BOARDS["kvledger-oncall"])
        if panel["title"] in ("Wait by cause", "Waiting now by cause", "Oldest open wait")
        for overrides in [panel["fieldConfig"]["overrides"]]
    ]
    causes = set(WaitCause.words())
    assert len(found) == 3
    for colors in found:
        assert colors == found[0]
        assert colors.keys() == causes
        assert len(set(colors.values())) == len(causes)


def test_a_series_of_zero_does_not_outline_the_stack_below_it() -> None:
    for board in BOARDS.values():
        for panel in panels(board):
            custom = panel["fieldConfig"]["defaults"].get("custom", {})
            if custom.get("stacking", {}).get("mode") == "normal":
                assert custom["lineWidth"] == 0, panel["title"]


def test_ids_are_unique_and_rows_stand_before_their_panels(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
    assert len({panel["title"] for panel in board["panels"]}) == len(ids)


def test_panels_do_not_overlap_and_fill_their_rows(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(taken) == 24 * (1 + max(y for _, y in taken))


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_every_selector_is_narrowed_to_job_and_instance_and_a_recorded_one_to_job_and_model(asked: Asked) -> None:
    for selector in parsed(asked.expr).selectors:
        second = "model" if is_recorded(str(selector.name)) else "instance"
        chosen = matchers(selector)
        assert (chosen.get("job"), chosen.get(second)) == ("=~$job", f"=~${second}")


def test_the_fleet_board_reads_recorded_series_and_the_others_do_not() -> None:
    for asked in QUERIES:
        assert {is_recorded(str(each.name)) for each in parsed(asked.expr).selectors} == {asked.board == FLEET}, asked


@pytest.mark.parametrize("panel", named("table"))
def test_a_table_shows_columns_that_its_query_has_under_the_titles_that_its_overrides_name(
    panel: dict[str, Any],
) -> None:
    (organize,) = panel["transformations"]
    titles = organize["options"]["renameByName"]
    labels = parsed(panel["targets"][0]["expr"]).by
    assert organize["id"] == "organize"
    assert organize["options"]["excludeByName"]["Time"] is True
    assert labels <= titles.keys() - {"Value"} <= labels | MADE_LABELS, (
        "a label without a column is shown under its name"
    )
    assert {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]} <= set(titles.values())
    assert {each["displayName"] for each in panel["options"]["sortBy"]} <= set(titles.values())


@pytest.mark.parametrize("panel", named("timeseries"))
def test_a_limit_is_a_dashed_line_that_the_description_explains(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    drawn = defaults.get("custom", {}).get("thresholdsStyle")
    assert (drawn is None) == ("thresholds" not in defaults)
    if drawn is not None:
        assert drawn["mode"] == "dashed"
        base, _ = defaults["thresholds"]["steps"]
        assert base == {"value": None, "color": "transparent"}
        assert "dashed" in panel["description"].lower()


@pytest.mark.parametrize("panel", named("stat"))
def test_a_number_is_plain_or_quiet_where_it_is_not_bad(panel: dict[str, Any]) -> None:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert len(steps) == 1 or QUIET in {step["color"] for step in steps}
    assert panel["options"]["colorMode"] == ("value" if len(steps) == 1 else "background_solid")


def test_the_docs_count_the_panels_of_every_board_and_show_it() -> None:
    text = DOCS.read_text()
    counted = {
        f"kvledger-{name}": int(number) for name, number in re.findall(r"#[\w-]*kvledger-(\w+)\) \| (\d+) ", text)
    }
    assert counted == {name: len(panels(board)) for name, board in BOARDS.items()}
    for name in BOARDS:
        picture = f"images/board-{name.removeprefix('kvledger-')}.png"
        assert f"]({picture})" in text
        assert (DOCS.parent / picture).stat().st_size < PICTURE_BYTES


def test_a_panel_on_two_boards_is_the_same_on_both() -> None:
    seen: dict[str, Any] = {}
    for board in BOARDS.values():
        for panel in panels(board):
            same = {key: panel[key] for key in ("type", "targets", "fieldConfig")} | {"text": panel["description"]}
            assert seen.setdefault(panel["title"], same) == same, panel["title"]


@pytest.mark.parametrize("asked", QUERIES + annotation_queries(), ids=str)
def test_counters_are_only_rated_and_rates_are_over_the_rate_interval(asked: Asked) -> None:
    found = parsed(asked.expr)
    assert all(each.range == RATE_INTERVAL for each in found.rated)
    cumulative = [each.prettify() for each in found.selectors if str(each.name).endswith(CUMULATIVE)]
    assert cumulative == [each.vector_selector.prettify() for each in found.rated]


def test_unknown_is_grey_and_only_healthy_is_green() -> None:
    board = BOARDS["kvledger-oncall"]
    titles = {word.capitalize().replace("_", " ") for word in Verdict.words()}
    steps = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        for panel in panels(board)
        if panel["title"] in titles
    }
    assert steps.keys() == titles
    assert steps["Unknown"] == [{"value": None, "color": QUIET}, {"value": 1, "color": "#8E8E8E"}]
    assert [name for name, each in steps.items() if each[1]["color"] == "#37872D"] == ["Healthy"]
    assert len({each[1]["color"] for each in steps.values()}) == len(titles)


def test_the_table_of_verdicts_has_words_for_every_reason_and_the_verdict_in_its_colour() -> None:
    (panel,) = [p for p in panels(BOARDS["kvledger-oncall"]) if p["title"] == "Verdict of each engine"]
    words = {
        each["matcher"]["options"]: next(p["value"][0]["options"] for p in each["properties"] if p["id"] == "mappings")
        for each in panel["fieldConfig"]["overrides"]
        if any(p["id"] == "mappings" for p in each["properties"])
    }
    assert words.keys() == {"Verdict", "Why", "What to do"}
    for row in ROWS:
        reason = row.reason.word
        assert words["Verdict"][reason]["text"] == row.verdict.word.replace("_", " ").capitalize()
        assert words["Why"][reason]["text"].lower() == row.says.lower()
        assert words["What to do"][reason]["text"]
    assert {words["Verdict"][row.reason.word]["color"] for row in ROWS if row.verdict is Verdict.HEALTHY} == {"#37872D"}
    assert len({words["Verdict"][row.reason.word]["color"] for row in ROWS}) == len(Verdict)


def test_every_reason_and_every_part_of_request_time_has_a_colour_of_its_own() -> None:
    for title, wanted in (("Reasons over time", set(Reason.words())), ("Where request time goes", PARTS)):
        (panel,) = [p for p in panels(BOARDS["kvledger-oncall"]) if p["title"] == title]
        found = {
            each["matcher"]["options"]: each["properties"][0]["value"]["fixedColor"]
            for each in panel["fieldConfig"]["overrides"]
        }
        assert found.keys() == wanted
        assert len(set(found.values())) == len(wanted)


def test_the_limits_of_the_pool_are_dashed_lines_over_the_stack_and_outside_of_it() -> None:
    (panel,) = [p for p in panels(BOARDS["kvledger-pool"]) if p["title"] == "Blocks, stacked to capacity"]
    overrides = {
        each["matcher"]["options"]: {p["id"]: p["value"] for p in each["properties"]}
        for each in panel["fieldConfig"]["overrides"]
    }
    assert [target["legendFormat"] for target in panel["targets"]][:3] == ["active", "cached", "free"]
    for name in ("capacity", "alert watermark", "admission watermark"):
        assert overrides[name]["custom.lineStyle"]["fill"] == "dash"
    for name in ("capacity", "alert watermark", "admission watermark", "logical", "shared"):
        assert overrides[name]["custom.stacking"]["mode"] == "none"
        assert overrides[name]["color"]["mode"] == "fixed"
    assert len({each["color"]["fixedColor"] for each in overrides.values()}) == 8
