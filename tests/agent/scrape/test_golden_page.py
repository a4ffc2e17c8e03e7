"""The whole `/metrics` page of engines that are only scraped, against its golden copy: what is unknown is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvledger_agent.exporters.page import MetricsPage
from kvledger_agent.finding import Finding
from kvledger_agent.fleet import Fleet
from kvledger_agent.observation import Observation
from kvledger_agent.scrape.judgement import scraped_verdict
from kvledger_agent.scrape.observe import observation_of
from kvledger_agent.scrape.symptoms import SymptomTracker
from kvledger_agent.verdict.judge import Judge
from tests.agent.scrape.scenes import PAGES, Scene
from tests.agent.test_metrics_page import settled

GOLDEN = Path(__file__).parents[2] / "golden" / "scraped.txt"
SCENES = (
    "vllm-0.32-idle_hold",
    "vllm-0.32-usage_negative",
    "vllm-0.32-waiting_without_running",
    "sglang-0.5.22-busy",
    "lmdeploy-pytorch-idle_warm",
    "tgi-3-busy",
)


def observations(name: str) -> Iterator[Observation]:
    """The engines of a scene after all of its scrapes."""
    scene = Scene(name, json.loads((PAGES / f"{name}.expected.json").read_text()))
    profile = scene.detected().profile
    found: dict[str, tuple[Finding, ...]] = {}
    for _, found in scene.findings():  # noqa: B007  the last one's are wanted
        pass
    for reading in scene.readings():
        judged = SymptomTracker(profile).judged(reading)
        findings = found[str(reading.rank)]
        seen = observation_of(reading, findings, name=name.replace(".", "-"), profile=profile, judged=judged, seq=1)
        yield replace(seen, verdict=scraped_verdict(Judge(), profile, seen))


@pytest.fixture(scope="module")
def page() -> str:
    fleet = Fleet(
        round=1, sampled_ns=0, observations=tuple(o for name in SCENES for o in observations(name)), sources=()
    )
    return settled(MetricsPage().render(fleet, accept="", now_ns=0)[0].decode())


def test_the_page_of_scraped_engines_is_the_golden_one(page: str, update_golden: bool) -> None:
    if update_golden:
        GOLDEN.write_text(page)

    assert page == GOLDEN.read_text(), "run pytest tests/agent --update-golden if the change is meant"


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("vllm-0-32-idle_hold", "idle_hold"),
        ("vllm-0-32-usage_negative", "usage_out_of_range"),
        ("vllm-0-32-waiting_without_running", "waiting_without_running"),
    ],
)
def test_a_symptom_is_on_the_page_by_its_kind(page: str, engine: str, kind: str) -> None:
    (line,) = (line for line in page.splitlines() if f'engine="{engine}"' in line and f'kind="{kind}"' in line)
    assert line.startswith("kvledger_findings{")
    assert line.endswith(" 1.0")


@pytest.mark.parametrize("family", ["pool_leaked_blocks", "group_shared_blocks", "wait_seconds", "oldest_wait_seconds"])
def test_what_only_a_ledger_knows_is_not_on_the_page(page: str, family: str) -> None:
    assert f"\nkvledger_{family}" not in page
