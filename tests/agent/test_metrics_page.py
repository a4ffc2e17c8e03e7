"""The whole `/metrics` page of known engines, against its golden copy; the copy itself, against promtool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvledger import catalog
from kvledger.families.family import Kind
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from tests.children import Spawn

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ENGINE = "golden"
_VOLATILE = (
    (re.compile(r"^(kvledger_build_info)\{.*\} .*$"), r'\1{python="3",version="0"} 1.0'),
    (re.compile(r"^(kvledger_agent_(?:cpu_seconds_total|memory_bytes|source_\w+_seconds)\S*) .*$"), r"\1 0.0"),
    (re.compile(r"^(kvledger_engine_heartbeat_age_seconds\S*) .*$"), r"\1 0.0"),
)


def settled(page: str) -> str:
    """The page with everything that depends on machine, moment or version replaced."""
    lines = page.splitlines()
    for pattern, replacement in _VOLATILE:
        lines = [pattern.sub(replacement, line) for line in lines]
    return "\n".join([*lines, ""])


@pytest.fixture(name="agent")
def agent_of_the_golden_engines(memory: Path, spawn: Spawn) -> Iterator[Agent]:
    child = spawn("tests.agent.children", "page", memory)
    assert child.stdin is not None
    assert child.stdout is not None
    with closing(Agent(AgentConfig(directory=memory))) as agent:
        agent.sample_once()
        print(file=child.stdin, flush=True)
        assert child.stdout.readline() == "grown\n"
        agent.sample_once()
        yield agent


@pytest.mark.needs("tmpfs")
def test_the_page_is_the_golden_one(agent: Agent, update_golden: bool) -> None:
    page = settled(agent.metrics_text())
    if update_golden:
        GOLDEN.write_text(page)

    assert page == GOLDEN.read_text(), "run pytest tests/agent --update-golden if the change is meant"


@pytest.mark.needs("promtool")
def test_promtool_finds_nothing_to_say_about_the_golden_page() -> None:
    checked = subprocess.run(["promtool", "check", "metrics"], input=GOLDEN.read_text(), capture_output=True, text=True)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.needs("tmpfs")
def test_the_page_parses_as_openmetrics_with_the_same_values(agent: Agent) -> None:
    def values(families: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        assert isinstance(families, list)
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    body, _ = agent.metrics_page(OPENMETRICS)
    openmetrics = values(list(parse_openmetrics(body.decode())))
    text = values(list(parse_text(agent.metrics_text())))

    moving = {key for key in text if key[0].startswith(("kvledger_agent_", "kvledger_engine_heartbeat_age_"))}
    assert {k: v for k, v in openmetrics.items() if k not in moving} == {
        k: v for k, v in text.items() if k not in moving
    }
    assert {key[0] for key in openmetrics} == {key[0] for key in text}


@pytest.mark.needs("tmpfs")
def test_every_family_that_the_agent_can_give_is_on_the_page_or_said_to_be_unknown(agent: Agent) -> None:
    families = {family.name: family for family in parse_text(agent.metrics_text())}
    samples = families["kvledger_capability"].samples
    known = {s.labels["signal"] for s in samples if s.value and s.labels["engine"] == ENGINE}
    unknown = {s.labels["signal"] for s in samples if s.labels["engine"] == ENGINE} - known

    absent = {f.name for f in catalog.FAMILIES if f.exposed_name.removesuffix("_total") not in families}

    assert not absent
    assert unknown == {"engine_heartbeat_age_seconds"}, "whose clock is virtual"
    assert {family.name.removeprefix("kvledger_") for family in families.values()} <= {
        f.exposed_name.removeprefix("kvledger_").removesuffix("_total") for f in catalog.FAMILIES
    }


@pytest.mark.needs("tmpfs")
def test_every_series_has_the_labels_that_the_catalogue_gives_its_family(agent: Agent) -> None:
    exposed = {f.exposed_name.removesuffix("_total"): f for f in catalog.FAMILIES}
    for family in parse_text(agent.metrics_text()):
        wanted = set(exposed[family.name].label_names)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == wanted, sample
        assert family.documentation == exposed[family.name].help


@pytest.mark.needs("tmpfs")
def test_histograms_are_cumulative_and_their_counts_agree(agent: Agent) -> None:
    for family in parse_text(agent.metrics_text()):
        if family.type != Kind.HISTOGRAM:
            continue
        buckets: dict[tuple[tuple[str, str], ...], list[float]] = {}
        counts = {}
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            if sample.name.endswith("_bucket"):
                buckets.setdefault(labels, []).append(sample.value)
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        assert all(values == sorted(values) for values in buckets.values())
        assert {labels: values[-1] for labels, values in buckets.items()} == counts


@pytest.mark.needs("tmpfs")
def test_the_scene_shows_what_boards_are_made_of(agent: Agent) -> None:
    samples = [sample for family in parse_text(agent.metrics_text()) for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        wanted = {"engine": ENGINE, **labels}.items()
        return sum(s.value for s in samples if s.name == f"kvledger_{name}" and wanted <= s.labels.items())

    states = {state: total("pool_blocks", state=state) for state in ("free", "cached", "active")}
    assert sum(states.values()) == total("pool_capacity_blocks") == 24
    assert total("group_logical_blocks") > total("group_active_blocks") > total("group_shared_blocks") > 0
    for name in ("rejections_total", "cancellations_total", "preemptions_total", "evictions_total", "cost_total"):
        assert total(name) > 0, name
    for cause in ("pool", "batch_slots", "preemption"):
        assert total("wait_seconds_count", cause=cause) + total("requests_waiting", cause=cause) > 0, cause
    assert total("requests_waiting", cause="step") == 1
    assert total("tenant_quota_blocks", tenant="acme") == 32
    assert total("findings") == total("pool_leaked_blocks") == total("invariant_violations") == 0
