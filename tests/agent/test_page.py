"""The text of the metrics page is what prometheus-client itself would write, in both formats."""

from __future__ import annotations

import time

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvledger_agent.exporters.page import OPENMETRICS_END, MetricsPage, SeriesText
from kvledger_agent.fleet import Fleet
from kvledger_agent.observation import Observation
from kvledger_engine.messages import NewRequest
from tests.agent.collector import FleetCollector
from tests.agent.rig import EngineWatch, RealWatch

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def fleet(*observations: Observation, number: int = 1) -> Fleet:
    return Fleet(round=number, sampled_ns=time.monotonic_ns(), observations=observations, sources=())


def at_work(engine: str) -> EngineWatch:
    watch = EngineWatch(engine=engine)
    for number in range(5):
        watch.loop.submit(
            NewRequest(request_id=f"r{number}", prompt=[*range(9), number], max_tokens=9, tenant=f"t{number}")
        )
        watch.loop.step()
    return watch


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_kept_lines_give_the_text_that_the_client_gives(accept: str) -> None:
    encode, _ = choose_encoder(accept)
    text, one, two = SeriesText(encode), at_work("one"), at_work("two")
    for _ in range(4):
        seen = fleet(one.look(), two.look())
        assert text.render(seen) == encode(FleetCollector(seen)).removesuffix(OPENMETRICS_END)
        one.loop.submit(
            NewRequest(request_id=f"n{one.ledger.seq}", prompt=[1], max_tokens=3, tenant=f"new{one.ledger.seq}")
        )
        for _ in range(4):
            one.loop.step()


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_page_parses_and_has_every_family_once(accept: str) -> None:
    page = MetricsPage()
    body, content_type = page.render(
        fleet(at_work("one").look(), at_work("two").look()), accept=accept, now_ns=time.monotonic_ns()
    )

    parse = parse_openmetrics if accept else parse_text
    families = list(parse(body.decode()))
    assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    engines = {s.labels["engine"] for f in families for s in f.samples if "engine" in s.labels}
    assert engines == {"one", "two"}


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_tenant_may_have_any_name(accept: str) -> None:
    names = ["line\nbreak", "para\u2029graph", "\x0b\x0c\x1c\x85\r", 'quo"te', "back\\slash", "{a=1} 5", "🦉", " "]
    watch = EngineWatch()
    for name in names:
        watch.ledger.tenant_column(name)
    seen, (encode, _) = fleet(watch.look()), choose_encoder(accept)

    text = SeriesText(encode).render(seen)

    assert text == encode(FleetCollector(seen)).removesuffix(OPENMETRICS_END)
    parse = parse_openmetrics if accept else parse_text
    families = list(parse((text + OPENMETRICS_END).decode()))
    shown = {s.labels["tenant"] for f in families for s in f.samples if "tenant" in s.labels}
    assert shown == {*names, "other"}


def test_no_series_stands_twice_on_a_page() -> None:
    body, _ = MetricsPage().render(fleet(at_work("one").look()), accept="", now_ns=time.monotonic_ns())

    series = [line.rpartition(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_ages_are_those_of_the_scrape_and_all_else_is_rendered_once_a_round() -> None:
    watch = RealWatch()
    watch.publish()
    seen, page = fleet(watch.look(0.5)), MetricsPage()
    beat_ns = seen.observations[0].liveness.heartbeat_monotonic_ns
    assert beat_ns is not None

    ages = []
    for seconds in (1, 4):
        body, _ = page.render(seen, accept="", now_ns=beat_ns + seconds * 1_000_000_000)
        (line,) = [x for x in body.decode().splitlines() if x.startswith("kvledger_engine_heartbeat_age_seconds{")]
        ages.append(float(line.rpartition(" ")[2]))

    assert ages == [1.0, 4.0]


def test_an_engine_that_restarts_under_another_model_gets_its_own_labels() -> None:
    page = MetricsPage()
    for number, model in enumerate(("old", "new")):
        watch = EngineWatch(engine="one", model=model)
        body, _ = page.render(fleet(watch.look(), number=number + 1), accept="", now_ns=time.monotonic_ns())
        assert f'model="{model}"' in body.decode()
    assert 'model="old"' not in body.decode()
