"""An exposed metrics page as data. Parsed with prometheus_client's own parser, not ours."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Page = dict[str, list[tuple[Mapping[str, str], float]]]


def samples_of(text: str, *names: str) -> Page:
    """Sample name -> (labels, value) pairs; of some families only, if any are named, which is much faster."""
    page: Page = {}
    if names:
        text = "".join(line for line in text.splitlines(keepends=True) if line.startswith(names))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            page.setdefault(sample.name, []).append((sample.labels, sample.value))
    return page


def counters_of(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series that may never go back: counters, and the buckets, counts and sums of histograms."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.type in ("counter", "histogram") and not family.name.startswith("kvledger_agent_"):
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found
