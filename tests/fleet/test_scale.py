"""The simulated fleet: pages of the real exporter under many names, and a page that is written in its marks only."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench import children, fleet_scale
from bench.errors import BenchError
from bench.estimate import estimate
from bench.fleet_figures import Size
from bench.fleet_scale import main
from bench.fleet_scale_page import BEGIN, END, Measured, Run, section, write_section
from bench.machine import this_machine
from kvledger import catalog
from kvledger.families.family import Kind
from kvledger_alerts.fleet_rows import questions
from kvledger_alerts.table import Parameters
from tests.fleet.files import PAGE

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(url: str) -> Samples:
    """The samples of one page."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_each_page_is_that_of_an_engine_with_all_its_tenants_and_its_counters_go_on() -> None:
    with children.module("bench.fleetpages", "7", "2", "5", "3") as ready:
        seventh, eighth = scraped(f"{ready['url']}/7/metrics"), scraped(f"{ready['url']}/8/metrics")
        later = scraped(f"{ready['url']}/7/metrics")
    names = [{dict(labels).get("engine") for _, labels in page} - {None} for page in (seventh, eighth)]
    assert names == [{"engine-007"}, {"engine-008"}]
    tenants = {dict(labels)["tenant"] for name, labels in seventh if name == "kvledger_tenant_blocks"}
    assert len(tenants - {"default", catalog.OTHER_TENANT}) == 5
    exposed = {family.exposed_name for family in catalog.FAMILIES if family.kind is not Kind.HISTOGRAM}
    assert {name for name, _ in seventh if not name.endswith(("_bucket", "_sum", "_count"))} <= exposed
    counters = [key for key in seventh if key[0].endswith(("_total", "_bucket", "_count", "_sum"))]
    assert all(later[key] >= seventh[key] for key in counters)
    assert sum(seventh[key] for key in counters if key[0] == "kvledger_requests_total") > 0


def run(load: float = 0.0) -> Run:
    ratio = estimate([1.0, 2.0, 3.0])
    facts = {"engines": 3, "tenants": 2, "models": 1, "page_bytes": 1000, "graph_seconds": 60.0, "processes": 2}
    asked = Measured(name="what was asked", unit="×", estimate=ratio, raw_ms=10.0, recorded_ms=2.0, read=(1000, 20))
    return Run(
        machine=replace(this_machine(), load_1m=load),
        prometheus="2.42.0",
        size=facts,
        rows=(replace(asked, raw_ms=None), asked, replace(asked, raw_ms=9.0, recorded_ms=3.0, graph=True)),
    )


def test_the_section_shows_both_forms_and_says_when_the_machine_was_not_quiet() -> None:
    text = section(run())
    assert "| what was asked | 1,000 → 20 | 10 ms | 2 ms | 2 × |" in text
    assert "| what was asked | 9 ms | 3 ms | 2 × |" in text
    assert "to be measured again" not in text
    assert "to be measured again" in section(run(load=2.0))


def test_only_what_lies_between_the_marks_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_section(page, run())
    assert page.read_text() == f"before\n{BEGIN}\n{section(run())}\n{END}\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(BenchError, match="nowhere to write"):
        write_section(page, run())


def test_the_committed_page_says_what_was_simulated_and_answers_every_question_in_both_ways() -> None:
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert re.search(rf"\d+ engines × {Size().tenants} tenants, {Size().models} models", text)
    for question in questions(Parameters()):
        assert text.count(f"| {question.title} |") == 2, question.title


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("prometheus")
def test_a_small_fleet_is_measured_and_no_record_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Size(engines=3, tenants=2, history_seconds=32.0, rounds=3, idle_seconds=1.0)
    monkeypatch.setattr(fleet_scale, "QUICK", small)
    assert main(["--quick"], path=tmp_path / "page.md") == 0
    out = capsys.readouterr().out
    assert "3 engines × 2 tenants" in out
    assert "| series in memory, all of Prometheus |" in out
    assert out.count("| time to first token, P95 |") == 2
    assert not (tmp_path / "page.md").exists()
