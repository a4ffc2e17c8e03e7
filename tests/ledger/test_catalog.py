"""The catalogue is complete, well-formed, and exposes as OpenMetrics that promtool accepts."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kvledger import catalog, words
from kvledger.catalog import FAMILIES
from kvledger.families.family import PREFIX, Family, Kind, Scope, Source

# The families of the design, spelled out a second time so that a dropped or renamed row cannot go unseen.
EXPECTED = frozenset(
    re.findall(
        r"\w+",
        """
    pool_blocks pool_capacity_blocks pool_pinned_blocks pool_leaked_blocks pool_committed_blocks
    pool_peak_active_blocks pool_longest_free_run_blocks pool_budget_bytes pool_reserve_bytes
    pool_alert_watermark_ratio pool_admission_watermark_blocks pool_seconds_to_exhaustion
    group_logical_blocks group_active_blocks group_shared_blocks group_tail_waste_slots
    group_block_size_tokens group_block_bytes group_bytes_per_token
    requests_live requests_waiting requests_never_fit oldest_wait_seconds oldest_finishing_seconds
    tenant_blocks tenant_quota_blocks effective_concurrency requests_peak_running length_tokens maximum_concurrency
    scorecard_rejection_ratio scorecard_ttft_p95_seconds scorecard_cost_per_request
    wait_seconds time_to_first_block_seconds time_to_first_token_seconds inter_token_latency_seconds
    request_duration_seconds allocation_seconds release_seconds block_reference_lifetime_seconds step_seconds
    request_peak_blocks request_tokens
    requests_total rejections_total tenant_rejections_total cancellations_total preemptions_total
    preempted_blocks_total swapped_blocks_total recomputed_tokens_total
    prefix_queried_tokens_total prefix_hit_tokens_total
    evictions_total cow_copies_total cow_bytes_total sharing_overhead_seconds_total prompt_tokens_total
    generation_tokens_total block_seconds_total cost_total allocation_failures_total
    findings notes invariant_violations verdict verdict_reason verdict_share
    engine_up engine_closed engine_heartbeat_age_seconds engine_idle engine_steps_total engine_restarts_total
    build_info capability
    agent_source_success agent_source_duration_seconds agent_source_age_seconds agent_events_lost_total
    agent_reads_retried_total agent_ledger_overflows_total agent_cpu_seconds_total agent_memory_bytes
    agent_otlp_exports_total agent_otlp_failures_total
    """,
    )
)
PER_TENANT = {
    "oldest_wait_seconds",
    "tenant_blocks",
    "tenant_quota_blocks",
    "effective_concurrency",
    "requests_total",
    "tenant_rejections_total",
    "block_seconds_total",
    "cost_total",
}
PER_CLASS = {
    "requests_live",
    "requests_waiting",
    "wait",
    "time_to_first_block",
    "time_to_first_token",
    "inter_token_latency",
}
OWN_LABELS = {
    "pool_blocks": ("state",),
    "pool_pinned_blocks": ("kind",),
    "requests_live": ("state",),
    "requests_waiting": ("cause",),
    "oldest_wait_seconds": ("cause",),
    "effective_concurrency": ("percentile",),
    "length_tokens": ("percentile",),
    "maximum_concurrency": ("percentile",),
    "wait": ("cause",),
    "request_duration": ("finish_reason",),
    "release": ("cause",),
    "block_reference_lifetime": ("shared",),
    "step": ("phase",),
    "request_tokens": ("kind",),
    "requests_total": ("finish_reason",),
    "rejections_total": ("reason",),
    "cancellations_total": ("cause",),
    "preemptions_total": ("mode",),
    "preempted_blocks_total": ("fate",),
    "swapped_blocks_total": ("direction",),
    "findings": ("kind",),
    "notes": ("kind",),
    "invariant_violations": ("invariant",),
    "verdict": ("verdict",),
    "verdict_reason": ("verdict_reason",),
    "verdict_share": ("part",),
    "capability": ("signal",),
    "build_info": ("version", "python"),
    "agent_source_success": ("source",),
    "agent_source_duration_seconds": ("source",),
    "agent_source_age_seconds": ("source",),
    "agent_events_lost_total": ("source",),
    "agent_reads_retried_total": ("source",),
    "agent_ledger_overflows_total": ("source",),
}


def label_rows(family: Family) -> Iterator[list[str]]:
    """One list of label values per series of `family`, open labels filled with a placeholder."""
    for combination in catalog.series_labels(family):
        known = dict(combination)
        yield [known.get(name, "any") for name in family.label_names]


def exposed(family: Family) -> Metric:
    """`family` as prometheus-client would expose it, every series at zero."""
    name, rows = family.exposed_name, list(label_rows(family))
    if family.kind is Kind.HISTOGRAM:
        bounds = [*(str(bound) for bound in family.buckets), "+Inf"]
        histogram = HistogramMetricFamily(name, family.help, labels=family.label_names)
        for row in rows:
            histogram.add_metric(row, [(bound, 0.0) for bound in bounds], 0.0)
        return histogram
    if family.kind is Kind.COUNTER:
        counter = CounterMetricFamily(name, family.help, labels=family.label_names)
        for row in rows:
            counter.add_metric(row, 0.0)
        return counter
    gauge = GaugeMetricFamily(name, family.help, labels=family.label_names)
    for row in rows:
        gauge.add_metric(row, 0.0)
    return gauge


class WholeCatalogue:
    """A collector that exposes every family."""

    def collect(self) -> Iterator[Metric]:
        """Every family of the catalogue once."""
        yield from map(exposed, FAMILIES)


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry that holds nothing but the catalogue."""
    result = CollectorRegistry()
    result.register(WholeCatalogue())
    return result


def test_every_family_of_the_design_is_in_the_catalogue_once() -> None:
    names = [family.exposed_name.removeprefix(PREFIX) for family in FAMILIES]
    assert sorted(names) == sorted(EXPECTED)


def test_by_name_finds_every_family_and_cannot_be_changed() -> None:
    assert tuple(catalog.BY_NAME.values()) == FAMILIES
    with pytest.raises(TypeError):
        catalog.BY_NAME["wait"] = FAMILIES[0]  # type: ignore[index]


def test_tenants_and_classes_are_labels_only_where_the_design_marks_them() -> None:
    assert {f.name for f in FAMILIES if f.per_tenant} == PER_TENANT
    assert {f.name for f in FAMILIES if f.per_class} == PER_CLASS


def test_own_labels_are_those_of_the_design() -> None:
    found = {f.name: tuple(label.name for label in f.labels) for f in FAMILIES if f.labels}
    assert found == OWN_LABELS


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_label_names_are_common_then_scope_then_own_then_tenant_then_class(family: Family) -> None:
    expected = [] if family.scope is Scope.AGENT else ["engine", "model", "rank"]
    expected += {Scope.POOL: ["pool"], Scope.GROUP: ["group"]}.get(family.scope, [])
    expected += [label.name for label in family.labels]
    expected += ["tenant"] * family.per_tenant + ["class"] * family.per_class
    assert list(family.label_names) == expected
    assert len(set(expected)) == len(expected)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_help_is_one_sentence_and_a_counter_ends_in_total(family: Family) -> None:
    assert family.help.endswith(".")
    assert family.help[0].isupper()
    assert "\n" not in family.help
    assert ". " not in family.help
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_unit_is_the_ending_of_the_exposed_name(family: Family) -> None:
    if family.name != "pool_seconds_to_exhaustion":
        assert family.exposed_name.removesuffix("_total").endswith(family.unit)
    assert family.unit == "seconds" or "seconds" not in family.exposed_name


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_only_histograms_have_buckets_and_these_rise_from_above_zero(family: Family) -> None:
    assert bool(family.buckets) == (family.kind is Kind.HISTOGRAM)
    assert all(low < high for low, high in zip((0.0, *family.buckets), family.buckets, strict=False))


@pytest.mark.parametrize("name", ["wait", "time_to_first_block", "time_to_first_token", "inter_token_latency"])
def test_what_a_client_waits_for_is_known_to_a_factor_of_three(name: str) -> None:
    """Every board interpolates within a bucket: in a wide one a P95 of a minute would read as five."""
    (bounds,) = (family.buckets for family in FAMILIES if family.name == name)
    seen = [bound for bound in bounds if bound >= 0.005]

    assert all(high <= 3 * low for low, high in itertools.pairwise(seen))


def test_stored_families_are_the_engines_own_counters_and_histograms() -> None:
    counters, histograms = catalog.stored_counters(), catalog.stored_histograms()
    assert {f.kind for f in counters} == {Kind.COUNTER}
    assert {f.kind for f in histograms} == {Kind.HISTOGRAM}
    assert {f.scope for f in counters + histograms} == {Scope.ENGINE}
    assert {*counters, *histograms} == {f for f in FAMILIES if f.source is Source.LEDGER}
    assert not [f.name for f in counters if f.name.startswith("agent_")]
    assert {f.name for f in counters if f.per_tenant} == PER_TENANT & {f.name for f in counters}


def test_series_are_the_product_of_closed_label_values_and_classes() -> None:
    series = catalog.series_labels(catalog.BY_NAME["wait"])
    assert len(series) == len(words.WaitCause) * len(words.RequestClass) == len(set(series))
    assert series[0] == (("cause", "pool"), ("class", "default"))
    assert series[-1] == (("cause", "deferred"), ("class", "batch"))
    assert catalog.series_labels(catalog.BY_NAME["evictions_total"]) == ((),)
    assert catalog.series_labels(catalog.BY_NAME["capability"]) == ((),)
    assert len(catalog.series_labels(catalog.BY_NAME["requests_total"])) == len(words.FinishReason)


def test_words_that_no_series_can_carry_are_not_label_values() -> None:
    values = {
        label.name: label.values
        for name in ("requests_live", "pool_pinned_blocks")
        for label in catalog.BY_NAME[name].labels
    }
    assert values["state"] == ("waiting", "running", "preempted", "swapped", "finishing")
    assert values["kind"] == ("deferred_free", "transfer", "copy_on_write", "connector")


def test_verdict_shares_name_every_wait_cause_and_the_three_other_parts() -> None:
    (part,) = catalog.BY_NAME["verdict_share"].labels
    assert part.values is not None
    assert {v.removeprefix("wait_") for v in part.values if v.startswith("wait_")} == set(words.WaitCause.words())
    assert part.values[-3:] == ("prefill", "decode", "other")


def test_the_whole_catalogue_parses_as_openmetrics(registry: CollectorRegistry) -> None:
    page = generate_openmetrics(registry).decode()
    parsed = {family.name: family.type for family in text_string_to_metric_families(page)}
    assert parsed == {f.exposed_name.removesuffix("_total"): f.kind.value for f in FAMILIES}


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_whole_catalogue(registry: CollectorRegistry) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
