"""OTLP: a real receiver gets what `/metrics` says, and an endpoint in trouble costs a counter and nothing else."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.semconv.resource import (
    HostArchValues,
    OsTypeValues,
    ResourceAttributes,
    TelemetrySdkLanguageValues,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvledger import catalog
from kvledger.families.family import Family, Kind, Scope
from kvledger_agent.agent import Agent
from kvledger_agent.commands import agent as command
from kvledger_agent.config import AgentConfig, otlp_url
from kvledger_agent.errors import MissingExtra, UsageError
from kvledger_agent.exporters.otlp import SCOPE, SERVICE, UNKNOWN_START_NS, OtlpMetrics, Starts, resource_of
from kvledger_agent.exporters.otlp_names import otlp_name, otlp_unit
from kvledger_agent.exporters.otlp_push import OtlpPush, pause_seconds
from kvledger_agent.exports import ExportTally
from kvledger_agent.observation import Identity
from tests.agent.receiver import (
    CHATTY,
    MOVED,
    OK,
    PARTIAL,
    REFUSED,
    RESET,
    SLOW,
    UNAVAILABLE,
    Receiver,
    receiving,
)
from tests.agent.test_page import at_work, fleet
from tests.children import ENVIRONMENT, ROOT, Spawn
from tests.ports import free_port

CHILDREN = "tests.agent.children"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
BY_OTLP_NAME = {otlp_name(family): family for family in catalog.FAMILIES}
HOST_ARCH = {"x86_64": HostArchValues.AMD64, "aarch64": HostArchValues.ARM64}
MOVING = ("kvledger_agent_", "kvledger_engine_heartbeat_age_seconds")


def attributes(items: Any) -> dict[str, str]:
    return {item.key: item.value.string_value for item in items}


def metrics_of(request: ExportMetricsServiceRequest) -> list[Any]:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return list(scope.metrics)


def points_of(metric: Any) -> list[Any]:
    return list(getattr(metric, metric.WhichOneof("data")).data_points)


def as_series(request: ExportMetricsServiceRequest) -> Series:
    """What was received, written as the samples of a Prometheus page."""
    series: Series = {}
    for metric in metrics_of(request):
        name = BY_OTLP_NAME[metric.name].exposed_name
        for point in points_of(metric):
            labels = frozenset(attributes(point.attributes).items())
            if metric.WhichOneof("data") != "histogram":
                series[name, labels] = point.as_double
                continue
            series[f"{name}_count", labels], series[f"{name}_sum", labels] = point.count, point.sum
            below = 0
            for bound, count in zip([*map(repr, point.explicit_bounds), "+Inf"], point.bucket_counts, strict=True):
                below += count
                series[f"{name}_bucket", labels | {("le", bound)}] = below
    return series


def page_series(page: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(page)
        for sample in family.samples
    }


def still(series: Series) -> Series:
    """Without what depends on the moment."""
    return {key: value for key, value in series.items() if not key[0].startswith(MOVING)}


@contextmanager
def pushing(agent: Agent, endpoint: str) -> Iterator[OtlpPush]:
    push = OtlpPush(agent, otlp_url(endpoint))
    try:
        yield push
    finally:
        push.stop()


@pytest.fixture(name="golden")
def agent_of_the_golden_engine(memory: Path, spawn: Spawn) -> Iterator[Agent]:
    spawn(CHILDREN, "scene", memory)
    with closing(Agent(AgentConfig(directory=memory))) as agent:
        agent.sample_once()
        yield agent


def sent(agent: Agent, receiver: Receiver) -> ExportMetricsServiceRequest:
    with pushing(agent, receiver.url) as push:
        assert push.push() is True
    return receiver.requests[-1][2]


@pytest.mark.needs("tmpfs")
def test_every_series_of_the_metrics_page_arrives_with_its_value_and_nothing_else(golden: Agent) -> None:
    with receiving() as receiver:
        received = as_series(sent(golden, receiver))

    page = page_series(golden.metrics_text())
    assert still(received) == still(page)
    assert received.keys() == page.keys()


@pytest.mark.needs("tmpfs")
def test_every_family_has_its_type_unit_help_and_temporality(golden: Agent) -> None:
    with receiving() as receiver:
        metrics = metrics_of(sent(golden, receiver))

    names = [metric.name for metric in metrics]
    assert len(names) == len(set(names))
    data = {Kind.GAUGE: "gauge", Kind.COUNTER: "sum", Kind.HISTOGRAM: "histogram"}
    for metric in metrics:
        family = BY_OTLP_NAME[metric.name]
        assert (metric.WhichOneof("data"), metric.unit, metric.description) == (
            data[family.kind],
            otlp_unit(family),
            family.help,
        )
        if family.kind is Kind.COUNTER:
            assert (metric.sum.is_monotonic, metric.sum.aggregation_temporality) == (True, 2)
        if family.kind is Kind.HISTOGRAM:
            assert metric.histogram.aggregation_temporality == 2
            assert all(tuple(p.explicit_bounds) == family.buckets for p in metric.histogram.data_points)
            assert not any(p.HasField("min") or p.HasField("max") for p in metric.histogram.data_points)


@pytest.mark.needs("tmpfs")
def test_the_resource_says_which_agent_it_is_and_stays_the_same_after_a_restart(
    golden: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,host.name=named")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hush")
    with receiving() as receiver:
        first, again = sent(golden, receiver), sent(golden, receiver)
        path, headers, _ = receiver.requests[0]

    assert (path, headers["authorization"]) == ("/v1/metrics", "Bearer hush")
    (resource,) = first.resource_metrics
    known = attributes(resource.resource.attributes)
    assert known == attributes(again.resource_metrics[0].resource.attributes)
    assert (known["service.name"], known["host.name"]) == (SERVICE, "named")
    assert known["deployment.environment.name"] == "test"
    assert resource.scope_metrics[0].scope.name == SCOPE


@pytest.mark.needs("tmpfs")
@pytest.mark.needs("distribution")
def test_the_resource_has_the_names_and_values_of_the_semantic_conventions(
    golden: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    with receiving() as receiver:
        (resource,) = sent(golden, receiver).resource_metrics
    known = attributes(resource.resource.attributes)

    names = {name for key, name in vars(ResourceAttributes).items() if key.isupper()}
    assert set(known) <= names
    assert {name: value for name, value in known.items() if not name.startswith("telemetry.")} == {
        ResourceAttributes.SERVICE_NAME: "kvledger-agent",
        ResourceAttributes.SERVICE_VERSION: version("kvledger"),
        ResourceAttributes.SERVICE_INSTANCE_ID: known["service.instance.id"],
        ResourceAttributes.HOST_NAME: socket.gethostname(),
        ResourceAttributes.HOST_ARCH: HOST_ARCH[os.uname().machine].value,
        ResourceAttributes.OS_TYPE: OsTypeValues.LINUX.value,
    }
    assert UUID(known["service.instance.id"]).version == 5
    assert known["telemetry.sdk.language"] == TelemetrySdkLanguageValues.PYTHON.value


def test_another_directory_or_port_is_another_instance_and_the_same_is_the_same() -> None:
    configs = [AgentConfig(directory=Path("/one"), port=port) for port in (1, 1, 2)] + [
        AgentConfig(directory=Path("/"))
    ]
    first, again, *others = (resource_of(c).attributes["service.instance.id"] for c in configs)
    assert first == again
    assert len({first, *others}) == 3


@pytest.mark.needs("tmpfs")
def test_engine_counters_count_from_the_engines_start_and_the_agents_from_its_own(memory: Path, spawn: Spawn) -> None:
    before_ns = time.time_ns()
    spawn(CHILDREN, "work", memory)
    with closing(Agent(AgentConfig(directory=memory))) as agent, receiving() as receiver:
        created_ns = time.time_ns()
        agent.sample_once()
        metrics = metrics_of(sent(agent, receiver))
        sampled_ns = time.time_ns()

    for metric in metrics:
        family = BY_OTLP_NAME[metric.name]
        for point in points_of(metric):
            assert created_ns - 1_000_000 <= point.time_unix_nano <= sampled_ns
            if family.kind is Kind.GAUGE:
                assert point.start_time_unix_nano == 0
            elif family.scope is Scope.AGENT:
                assert created_ns <= point.start_time_unix_nano <= sampled_ns
            else:
                assert before_ns <= point.start_time_unix_nano <= created_ns


def test_a_later_start_of_an_engine_does_not_begin_its_counters_anew() -> None:
    def engine(epoch: int, started_wall_ns: int) -> Identity:
        return Identity(engine="e", rank=0, model="m", pool="gpu", epoch=epoch, started_wall_ns=started_wall_ns)

    seen, late = Starts(), Starts()
    for epoch in (1, 2, 3):
        seen.note([engine(epoch, 1000 * epoch)])
        assert seen.of("e", "0") == 1000
    late.note([engine(2, 2000)])
    assert late.of("e", "0") == UNKNOWN_START_NS
    seen.note([])
    assert seen.of("e", "0") == UNKNOWN_START_NS


def test_series_of_an_engine_that_is_gone_are_sent_no_more() -> None:
    one, two = at_work("one"), at_work("two")
    metrics = OtlpMetrics(resource_of(AgentConfig(directory=Path("/nowhere"))), started_ns=1)

    def engines(*watches: Any) -> set[str]:
        data = metrics.collect(fleet(*(w.look() for w in watches)), wall_ns=1, tally=ExportTally())
        assert data is not None
        points = [p for m in data.resource_metrics[0].scope_metrics[0].metrics for p in m.data.data_points]
        return {str((p.attributes or {}).get("engine")) for p in points} - {"None"}

    assert engines(one, two) == {"one", "two"}
    assert engines(two) == {"two"}
    metrics.close()


def test_what_is_not_known_is_absent() -> None:
    watch = at_work("one")
    metrics = OtlpMetrics(resource_of(AgentConfig(directory=Path("/nowhere"))), started_ns=1)
    data = metrics.collect(fleet(watch.look()), wall_ns=1, tally=ExportTally())
    assert data is not None
    names = {metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    metrics.close()

    assert "kvledger.requests_live" in names
    assert not names & {"kvledger.cost", "kvledger.tenant_quota_blocks"}


def translated(name: str, unit: str, kind: Kind) -> str:
    """The Prometheus name that the collector and Prometheus' OTLP receiver make of an OTLP name.

    Rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/ as in
    prometheus/otlptranslator: units are spelled out and appended unless the name has the word already, what is in
    braces is dropped, `ratio` is for gauges of unit 1, and counters end in `total`.
    """
    tokens = name.replace(".", "_").split("_")
    word = {"s": "seconds", "By": "bytes"}.get(unit.partition("/")[0])
    if word and word not in tokens:
        tokens.append(word)
    if unit == "1" and kind is Kind.GAUGE:
        tokens.append("ratio")
    return "_".join([*tokens, *(["total"] if kind is Kind.COUNTER else [])])


@pytest.mark.parametrize("family", catalog.FAMILIES, ids=lambda family: str(family.name))
def test_an_otlp_name_turns_into_the_name_on_the_metrics_page(family: Family) -> None:
    assert translated(otlp_name(family), otlp_unit(family), family.kind) == family.exposed_name


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/metrics"),
        ("https://h/otlp/", "https://h/otlp/v1/metrics"),
        ("http://[::1]:4318/v1/metrics", "http://[::1]:4318/v1/metrics"),
    ],
)
def test_metrics_are_posted_below_the_endpoint(endpoint: str, url: str) -> None:
    assert otlp_url(endpoint) == url


@pytest.mark.parametrize(
    "endpoint", ["", "collector:4318", "grpc://h:4317", "http://", "http://h:port", "http://[::1", "file:///etc/passwd"]
)
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="use a URL"):
        otlp_url(endpoint)


@pytest.mark.parametrize(
    "endpoint", ["http://me:hush@h:4318", "https://h/?token=hush", "http://hush@[::1", "http://h#hush"]
)
def test_an_endpoint_with_a_secret_is_refused_without_repeating_it(endpoint: str) -> None:
    with pytest.raises(UsageError, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        AgentConfig(directory=Path("/nowhere"), otlp=endpoint)
    assert "hush" not in str(refused.value)


def test_an_endpoint_that_stays_down_is_asked_ever_less_often_and_at_least_once_a_minute() -> None:
    pauses = [pause_seconds(failures, 10) for failures in range(200)]

    assert pauses[:5] == [10, 10, 20, 40, 60]
    assert all(a <= b for a, b in pairwise(pauses))
    assert max(pauses) == 60
    assert pause_seconds(9, 300) == 300


def test_without_the_extra_the_agent_says_which_one_is_missing(monkeypatch: pytest.MonkeyPatch, memory: Path) -> None:
    for name in ("kvledger_agent.exporters.otlp_push", "kvledger_agent.exporters.otlp"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    parser = argparse.ArgumentParser()
    command.COMMAND.configure(parser)

    with pytest.raises(MissingExtra, match=r"agent --otlp.*needs opentelemetry.*kvledger\["):
        command.COMMAND.run(parser.parse_args(["--directory", str(memory), "--otlp", "http://127.0.0.1:1"]))


def test_an_agent_that_does_not_export_imports_no_opentelemetry() -> None:
    program = "import sys, kvledger_agent.commands.agent; sys.exit(any('opentelemetry' in m for m in sys.modules))"

    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=ENVIRONMENT).returncode == 0


@contextmanager
def trouble(mood: str) -> Iterator[tuple[str, Receiver | None]]:
    """An endpoint in trouble, and what answers there, if anything does."""
    if mood == "down":
        yield f"http://127.0.0.1:{free_port()}", None
        return
    with receiving() as receiver:
        receiver.mood = mood
        yield receiver.url, receiver


@pytest.mark.needs("tmpfs")
@pytest.mark.parametrize("mood", ["down", SLOW, UNAVAILABLE, RESET])
def test_an_endpoint_in_trouble_costs_a_counter_and_the_agent_goes_on_sampling(
    mood: str, memory: Path, spawn: Spawn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    spawn(CHILDREN, "hold", memory, "held", 0)
    config = AgentConfig(directory=memory, otlp_interval_seconds=0.2, otlp_timeout_seconds=0.4)
    with closing(Agent(config)) as agent, trouble(mood) as (endpoint, receiver):
        agent.start()
        with pushing(agent, endpoint) as push:
            push.start()
            rounds = [(time.monotonic(), r) for _ in range(3) if (r := next_round(agent))]
            page = page_series(agent.metrics_text())
            gaps = [b[0] - a[0] for a, b in pairwise(rounds)]
            # The machine may stall, but an export that held up the sampler would hold up every round.
            assert min(gaps) < 1.5
            assert max(gaps) < config.stale_after_seconds
            failed = page["kvledger_agent_otlp_failures_total", frozenset()]
            assert 1 <= failed <= page["kvledger_agent_otlp_exports_total", frozenset()] <= failed + 1
            assert receiver is None or len(receiver.requests) <= 2 * (failed + 1)
            if receiver is not None:
                receiver.mood = OK
                receiver.released.set()
                while "working=true" not in caplog.text:
                    time.sleep(0.02)

    lines = [record.getMessage() for record in caplog.records if "otlp=" in record.getMessage()]
    assert [line.split()[1] for line in lines] == ["working=false", *(["working=true"] if receiver is not None else [])]
    assert not [record for record in caplog.records if record.name.startswith(("opentelemetry", "urllib3"))]


@pytest.mark.needs("tmpfs")
@pytest.mark.parametrize(
    ("mood", "said"),
    [(MOVED, "308, redirected to https://elsewhere"), (REFUSED, "401"), (PARTIAL, "3 points rejected: too old")],
)
def test_points_that_an_endpoint_does_not_keep_count_as_a_failure_whatever_it_answers(
    mood: str, said: str, golden: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as receiver, pushing(golden, receiver.url) as push:
        receiver.mood = mood
        assert push.push() is False

    assert (len(receiver.requests), golden.exports) == (1, ExportTally(tried=1, failed=1))
    assert said in caplog.text


@pytest.mark.needs("tmpfs")
def test_an_answer_in_other_words_than_otlps_is_fine_if_its_status_is(golden: Agent) -> None:
    with receiving() as receiver, pushing(golden, receiver.url) as push:
        receiver.mood = CHATTY
        assert push.push() is True


def next_round(agent: Agent) -> int:
    """Wait for another sample; its number."""
    before = agent._round
    while agent._round == before:
        time.sleep(0.005)
    return agent._round


@pytest.mark.needs("tmpfs")
def test_a_stale_fleet_and_a_sample_already_sent_are_not_sent(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "hold", memory, "held", 0)
    config = AgentConfig(directory=memory, interval_seconds=0.01, stale_after_seconds=0.5)
    with closing(Agent(config)) as agent, receiving() as receiver, pushing(agent, receiver.url) as push:
        assert push.push() is None
        agent.sample_once()
        assert push.push() is True
        assert push.push() is None
        agent.sample_once()
        sampled = agent.fleet.sampled_ns
        while agent.fleet.age_seconds(time.monotonic_ns()) <= 0.5:
            time.sleep(0.02)
        assert push.push() is None
        assert agent.fleet.sampled_ns == sampled

    assert (len(receiver.requests), agent.exports) == (1, ExportTally(tried=1))


@pytest.mark.needs("tmpfs")
def test_the_command_exports_what_it_serves(memory: Path, spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn(CHILDREN, "scene", memory)
    with receiving() as receiver:
        monkeypatch.setitem(ENVIRONMENT, "KVLEDGER_AGENT_OTLP", receiver.url)  # as a deployment sets it
        spawn("kvledger_agent", "agent", "--directory", memory, "--port", 0)
        assert receiver.arrived.acquire(timeout=30)
        received = as_series(receiver.requests[0][2])

    engine: Mapping[str, str] = {"engine": "golden", "model": "cell", "rank": "0"}
    assert received["kvledger_engine_up", frozenset(engine.items())] == 1
