"""Every family of the catalogue has a place in an observation, and what is not known is said not to be."""

from __future__ import annotations

from kvledger import catalog
from kvledger.families.family import Scope
from kvledger_agent.exporters.families import answer, engine_families, reported
from kvledger_agent.exporters.prometheus import ScrapeCollector
from kvledger_agent.fleet import Fleet, SourceHealth
from kvledger_agent.observation import Identity, Liveness, Observation
from tests.agent.rig import EngineWatch

NOTHING_KNOWN = Observation(
    identity=Identity(engine="scraped", rank=0, model="m", pool="gpu"),
    liveness=Liveness(status="ok", up=None, idle=None, heartbeat_age_seconds=None, heartbeat_monotonic_ns=None),
)


def test_an_engine_of_which_nothing_is_known_shows_no_family_but_what_is_not_known() -> None:
    known = {f.name for f in engine_families() if answer(NOTHING_KNOWN, f) is not None}

    assert known == {"capability"}
    capabilities = answer(NOTHING_KNOWN, catalog.BY_NAME["capability"])
    assert capabilities is not None
    assert set(capabilities.values()) == {0.0}
    assert len(capabilities) == len(engine_families()) - 1


def test_a_ledger_reports_every_engine_family_that_its_geometry_allows() -> None:
    watch = EngineWatch(price_per_hour=1.0)
    observation = watch.look()

    missing = {f.name for f in engine_families() if not reported(observation, f)}

    virtual_or_not_yet = {
        "engine_heartbeat_age_seconds", "tenant_quota_blocks", "effective_concurrency", "pool_seconds_to_exhaustion",
        "cost_total", "length_tokens", "maximum_concurrency", "scorecard_cost_per_request",
    }  # fmt: skip
    assert missing == virtual_or_not_yet


def test_every_agent_family_is_filled() -> None:
    source = SourceHealth(
        source="a:0",
        path="a",
        success=True,
        status="ok",
        error=None,
        duration_seconds=0.1,
        last_good_ns=1,
        events_lost=0,
        reads_retried=0,
        overflows=0,
    )
    fleet = Fleet(round=1, sampled_ns=1, observations=(), sources=(source,))

    filled = {metric.name for metric in ScrapeCollector(fleet, 2).collect()}

    wanted = {f.exposed_name.removesuffix("_total") for f in catalog.FAMILIES if f.scope is Scope.AGENT}
    assert filled == wanted


def test_a_source_that_was_never_read_has_no_age() -> None:
    source = SourceHealth(
        source="bad:0",
        path="bad",
        success=False,
        status="not_a_ledger",
        error="x",
        duration_seconds=0.1,
        last_good_ns=None,
        events_lost=None,
        reads_retried=None,
    )
    metrics = ScrapeCollector(Fleet(round=1, sampled_ns=1, observations=(), sources=(source,)), 2).collect()
    samples = {metric.name: metric.samples for metric in metrics}

    assert samples["kvledger_agent_source_success"][0].value == 0.0
    assert "kvledger_agent_source_age_seconds" not in samples
    assert "kvledger_agent_events_lost" not in samples
