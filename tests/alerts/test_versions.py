"""The generated files in the words that Prometheus 2.42 and 3, and Alertmanager 0.25 and 0.34, all know.

Debian's are the older ones, which the live tests run; docker-compose.yml names the newer ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvledger_alerts.build import GENERATED, generated_files, target_files
from kvledger_alerts.prometheus import AGENT_TARGETS, ALERTMANAGER_TARGETS
from tests.deploy.compose import ROOT, services

KEYS: dict[str, set[str]] = {
    "prometheus.yml": {
        "global", "global.scrape_interval", "global.scrape_timeout", "global.evaluation_interval",
        "rule_files",
        "alerting", "alerting.alertmanagers", "alerting.alertmanagers.file_sd_configs",
        "alerting.alertmanagers.file_sd_configs.files",
        "scrape_configs", "scrape_configs.job_name", "scrape_configs.file_sd_configs",
        "scrape_configs.file_sd_configs.files",
    },
    "rules.yml": {
        "groups", "groups.name", "groups.interval", "groups.rules",
        "groups.rules.record", "groups.rules.alert", "groups.rules.expr", "groups.rules.for",
        "groups.rules.labels", "groups.rules.labels.severity", "groups.rules.labels.window",
        "groups.rules.annotations", "groups.rules.annotations.summary", "groups.rules.annotations.description",
        "groups.rules.annotations.runbook_url",
    },
    "alertmanager.yml": {
        "route", "route.receiver", "route.group_by", "route.group_wait", "route.group_interval",
        "route.repeat_interval", "route.routes", "route.routes.receiver", "route.routes.matchers",
        "inhibit_rules", "inhibit_rules.source_matchers", "inhibit_rules.target_matchers", "inhibit_rules.equal",
        "receivers", "receivers.name", "receivers.webhook_configs", "receivers.webhook_configs.url",
        "receivers.webhook_configs.send_resolved",
    },
    AGENT_TARGETS: {"targets", "labels", "labels.__scheme__", "labels.__metrics_path__"},
    ALERTMANAGER_TARGETS: {"targets"},
}  # fmt: skip
"""Every key of a file, with those that it lies under. One that a single version knows does not belong in here."""
WORDS = {
    "max_over_time", "min_over_time", "avg_over_time", "rate", "increase", "histogram_quantile", "absent", "sum", "max",
    "and", "or", "unless", "ignoring", "without", "group_left",
}  # fmt: skip
"""Functions, aggregations and operators of PromQL that mean the same in both."""
MOUNTED = {
    "prometheus.yml": ("prometheus", "/etc/prometheus/prometheus.yml"),
    "rules.yml": ("prometheus", "/etc/prometheus/rules.yml"),
    "alertmanager.yml": ("alertmanager", "/etc/alertmanager/alertmanager.yml"),
}


def mounted(name: str) -> Path:
    """The file that docker-compose.yml mounts as this one."""
    service, target = MOUNTED[name]
    path = services()[service].host_path(target)
    assert path is not None
    return path


def keys(node: Any, above: str = "") -> Iterator[str]:
    """Every key of a document, with those that it lies under."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{above}{key}"
            yield from keys(value, f"{above}{key}.")
    elif isinstance(node, list):
        for each in node:
            yield from keys(each, above)


def words(expressions: Iterable[str]) -> set[str]:
    """The bare words of PromQL: neither strings, nor labels in braces or parentheses after `without`, nor metrics."""
    text = "\n".join(expressions)
    text = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', "", text)
    text = re.sub(r"(without|ignoring|group_left|on|by) ?\([^)]*\)", r"\1", text)
    return {word for word in re.findall(r"[A-Za-z_:][\w:]*", text) if "kvledger" not in word and word != "up"}


@pytest.mark.parametrize("name", KEYS)
def test_no_file_has_a_key_that_one_of_the_supported_versions_lacks(name: str) -> None:
    everything = generated_files(webhook_url="http://127.0.0.1:1/") | target_files(
        agents=["http://agent:9470", "https://agents.example/second/"], alertmanagers=["alertmanager:9093"]
    )
    assert set(keys(yaml.safe_load(everything[name]))) == KEYS[name]


def test_no_rule_uses_a_word_of_promql_that_only_one_version_knows() -> None:
    (group,) = yaml.safe_load((GENERATED / "rules.yml").read_text())["groups"]
    assert words(rule["expr"] for rule in group["rules"]) == WORDS
    assert words(["sort_by_label(sum by (x) (up{a=\"b\"}), 'x')"]) >= {"sort_by_label"}


@pytest.mark.parametrize("name", MOUNTED)
def test_compose_mounts_what_the_table_gives(name: str) -> None:
    assert mounted(name) == GENERATED / name
    assert mounted(name).read_text() == generated_files()[name]


def test_the_target_lists_of_compose_say_what_would_be_generated_for_its_services() -> None:
    lists = target_files(agents=["http://agent:9470"], alertmanagers=["alertmanager:9093"])
    folder = ROOT / "deploy" / "prometheus"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.yml")} == set(lists)
    for name, text in lists.items():
        assert yaml.safe_load((folder / name).read_text()) == yaml.safe_load(text), name
