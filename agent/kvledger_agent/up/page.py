"""The agent's metrics page as data, read with prometheus_client's own parser. Computes sums, nothing else."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kvledger.families.family import PREFIX

FETCH_SECONDS = 5.0
FAMILIES = (
    "cancellations_total", "engine_idle", "findings", "verdict_reason", "group_logical_blocks", "group_shared_blocks",
    "pool_blocks", "pool_capacity_blocks", "pool_leaked_blocks", "preemptions_total", "rejections_total",
    "requests_waiting", "wait_seconds_count", "wait_seconds_sum",
)  # fmt: skip
_LINES = tuple(PREFIX + name for name in FAMILIES)


@dataclass(frozen=True, slots=True)
class Page:
    """Samples by name without the prefix: pairs of labels and value."""

    samples: Mapping[str, list[tuple[Mapping[str, str], float]]]

    def total(self, name: str, **labels: str) -> float | None:
        """Sum over the series of a family whose labels include `labels`; None when there is no such series."""
        found = [v for own, v in self.samples.get(name, ()) if labels.items() <= own.items()]
        return sum(found) if found else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by one label's value, zeros left out."""
        sums: dict[str, float] = {}
        for own, value in self.samples.get(name, ()):
            if value:
                sums[own[label]] = sums.get(own[label], 0.0) + value
        return sums


def parse_page(text: str) -> Page:
    """A page from its text: the families `up` looks at, since parsing all of them takes ten times as long."""
    text = "".join(line for line in text.splitlines(keepends=True) if line.startswith(_LINES))
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name.removeprefix(PREFIX), []).append((sample.labels, sample.value))
    return Page(samples)


def fetch(url: str, *, timeout_seconds: float = FETCH_SECONDS) -> str | None:
    """Body of a GET, None when it is refused or nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        refused.close()
        return None
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None
