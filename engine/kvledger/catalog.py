"""The metric catalogue: every exported family once, as one data table.

Owns their order; what each one is called, counts and says is in `families`. Layout, exporters, boards, alerts and docs
are checked against it; it never holds a value and never does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from types import MappingProxyType

from kvledger.families.agent import AGENT_SELF, FINDINGS, LIVENESS
from kvledger.families.counters import COUNTERS
from kvledger.families.family import Family, Kind, Source
from kvledger.families.histograms import HISTOGRAMS
from kvledger.families.pools import GROUP_GAUGES, POOL_GAUGES
from kvledger.families.requests import REQUEST_GAUGES, SCORECARD
from kvledger.words import RequestClass

OTHER_TENANT = "other"

FAMILIES: tuple[Family, ...] = (
    POOL_GAUGES + GROUP_GAUGES + REQUEST_GAUGES + SCORECARD + HISTOGRAMS + COUNTERS + FINDINGS + LIVENESS + AGENT_SELF
)
BY_NAME: Mapping[str, Family] = MappingProxyType({family.name: family for family in FAMILIES})


def stored_counters() -> tuple[Family, ...]:
    """The counters a ledger stores, in catalogue order."""
    return tuple(f for f in FAMILIES if f.source is Source.LEDGER and f.kind is Kind.COUNTER)


def stored_histograms() -> tuple[Family, ...]:
    """The histograms a ledger stores, in catalogue order."""
    return tuple(f for f in FAMILIES if f.source is Source.LEDGER and f.kind is Kind.HISTOGRAM)


def series_labels(family: Family) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Every combination of a family's closed label values, the class last where it is per class.

    Open labels, tenants and the common labels are not in it. A family without closed labels has one, empty,
    combination.
    """
    axes = [[(label.name, value) for value in label.values] for label in family.labels if label.values is not None]
    if family.per_class:
        axes.append([("class", word) for word in RequestClass.words()])
    return tuple(product(*axes))
