"""The Prometheus configuration: checked by Prometheus' own tool, with the lists that it names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from kvledger_alerts.build import generated_files, target_files, write
from kvledger_alerts.prometheus import agent_targets, alertmanager_targets, prometheus_document
from kvledger_alerts.table import Parameters, Scale

AGENTS = ["http://127.0.0.1:9470", "https://agents.example/second/"]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("alertmanagers", [["127.0.0.1:9093"], []])
def test_promtool_accepts_it_with_its_rules_and_its_lists(tmp_path: Path, alertmanagers: list[str]) -> None:
    write(tmp_path, generated_files() | target_files(agents=AGENTS, alertmanagers=alertmanagers))

    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "FAILED" not in checked.stdout
    assert "WARNING" not in checked.stdout, "every list is there"
    assert "2 rule files" in checked.stdout


def test_it_scrapes_the_job_that_the_rules_ask_for() -> None:
    files = generated_files(Parameters(job="gpu-farm"))
    (job,) = yaml.safe_load(files["prometheus.yml"])["scrape_configs"]
    assert job["job_name"] == "gpu-farm"
    assert 'up{job="gpu-farm"}' in files["rules.yml"]


@pytest.mark.parametrize(
    ("scale", "interval"),
    [
        pytest.param(Scale(), "5s", id="as it is"),
        pytest.param(Scale(factor=1 / 30, floor_seconds=3), "1s", id="three scrapes in the shortest window"),
        pytest.param(Scale(factor=2), "10s", id="stretched"),
    ],
)
def test_a_scale_stretches_scrapes_but_leaves_several_in_a_window(scale: Scale, interval: str) -> None:
    document = prometheus_document(Parameters(scale=scale))
    assert set(document["global"].values()) == {interval}


def test_an_agent_behind_https_and_a_path_is_scraped_there() -> None:
    assert agent_targets(AGENTS) == [
        {"targets": ["127.0.0.1:9470"]},
        {
            "targets": ["agents.example:443"],
            "labels": {"__scheme__": "https", "__metrics_path__": "/second/metrics"},
        },
    ]


def test_no_alertmanager_is_an_empty_list() -> None:
    assert alertmanager_targets([]) == []
    assert alertmanager_targets(["a:9093", "b:9093"]) == [{"targets": ["a:9093", "b:9093"]}]
