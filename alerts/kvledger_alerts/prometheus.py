"""The Prometheus configuration as a document, and the target lists it names (valid in 2.42 and in 3). Writes nothing.

Whom it scrapes and whom it tells is in files of their own, so that one configuration serves every place it runs in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from kvledger_alerts.fleet_rules import RULES as FLEET_RULES
from kvledger_alerts.table import Parameters

SCRAPE_SECONDS = 5.0
RULES = "rules.yml"
AGENT_TARGETS, ALERTMANAGER_TARGETS = "targets/agents.yml", "targets/alertmanager.yml"
METRICS_PATH = "/metrics"
PORTS = {"http": 80, "https": 443}


def prometheus_document(parameters: Parameters | None = None) -> dict[str, Any]:
    """Scrapes the agents, evaluates the rules and tells Alertmanager. Paths are relative to the configuration's."""
    parameters = parameters or Parameters()
    interval = parameters.scale.scrape(SCRAPE_SECONDS)
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [RULES, FLEET_RULES],
        "alerting": {"alertmanagers": [_listed(ALERTMANAGER_TARGETS)]},
        "scrape_configs": [{"job_name": parameters.job, **_listed(AGENT_TARGETS)}],
    }


def agent_targets(urls: Iterable[str]) -> list[dict[str, Any]]:
    """The list of agents to scrape, from their addresses (`http://HOST:PORT`); https and a path are kept as labels."""
    return [_agent(url) for url in urls]


def alertmanager_targets(addresses: Iterable[str]) -> list[dict[str, Any]]:
    """The list of Alertmanagers to tell, each `HOST:PORT`; an empty list where there is none."""
    targets = list(addresses)
    return [{"targets": targets}] if targets else []


def _agent(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    address = parts.netloc if parts.port else f"{parts.netloc}:{PORTS[parts.scheme]}"
    path = parts.path.rstrip("/")
    labels = {"__scheme__": parts.scheme} if parts.scheme != "http" else {}
    if path:
        labels["__metrics_path__"] = path + METRICS_PATH
    return {"targets": [address], **({"labels": labels} if labels else {})}


def _listed(file: str) -> dict[str, Any]:
    return {"file_sd_configs": [{"files": [file]}]}
