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


def false_alarms(page: Page) -> list[str]:
    """What a page of an engine without a fault must not show: a finding, a violation, states that do not add up."""
    found = [
        f"{name}{dict(labels)} = {value} without a fault"
        for name in ("kvledger_findings", "kvledger_invariant_violations")
        for labels, value in page.get(name, [])
        if value
    ]
    states = {labels["state"]: value for labels, value in page.get("kvledger_pool_blocks", [])}
    capacity = total(page, "kvledger_pool_capacity_blocks")
    if states and sum(states.values()) != capacity:
        found.append(f"torn: {states} do not add up to {capacity}")
    return found


def total(page: Page, name: str, **labels: str) -> float:
    """The sum of a sample's series, of those with these labels."""
    return sum(value for found, value in page.get(name, []) if labels.items() <= found.items())


def is_at_rest(page: Page) -> bool:
    """Whether a page shows its engines idle with no block active."""
    idle = [value for _, value in page.get("kvledger_engine_idle", [])]
    return bool(idle) and all(idle) and not total(page, "kvledger_pool_blocks", state="active")


def counters_of(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series that may never go back: counters, and the buckets, counts and sums of histograms."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.type in ("counter", "histogram") and not family.name.startswith("kvledger_agent_"):
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found
