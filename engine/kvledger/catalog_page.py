"""The catalogue as a page: `python -m kvledger.catalog_page > docs/metrics.md`. Pure; a test compares the two."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kvledger.families.agent import AGENT_SELF, FINDINGS, LIVENESS
from kvledger.families.counters import COUNTERS
from kvledger.families.family import COMMON_LABELS, Family, Kind, Scope, Source
from kvledger.families.histograms import HISTOGRAMS
from kvledger.families.pools import GROUP_GAUGES, POOL_GAUGES
from kvledger.families.requests import REQUEST_GAUGES, SCORECARD

_COMMON = ", ".join(f"`{label}`" for label in COMMON_LABELS)
_INTRODUCTION = f"""# Metrics

Written by `python -m kvledger.catalog_page` from the catalogue in code; do not edit. Every family but those of the
agent itself has the labels {_COMMON}; `pool` or `group` where the table says so. Which
values a label can have is behind it. `tenant` and `class` are capped: further ones are `other`. A family appears only
where its source reports it; `kvledger_capability{{signal}}` says 1 or 0 for each. Unknown is never zero.

*Kept by*: the **engine** counts it in its ledger, and it goes on over restarts; a **reader** computes it from one
sample of the ledger; the **agent** knows it from more than one, or about itself.
"""
_CHAPTERS = (
    ("Pool", POOL_GAUGES),
    ("Cache groups", GROUP_GAUGES),
    ("Requests and tenants", REQUEST_GAUGES),
    ("Scorecard", SCORECARD),
    ("Histograms", HISTOGRAMS),
    ("Counters", COUNTERS),
    ("Findings and verdict", FINDINGS),
    ("Liveness", LIVENESS),
    ("The agent on itself", AGENT_SELF),
)
_KEEPER = {Source.LEDGER: "engine", Source.READER: "reader", Source.AGENT: "agent"}


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_INTRODUCTION, *(line for title, families in _CHAPTERS for line in _chapter(title, families))])


def _chapter(title: str, families: tuple[Family, ...]) -> Iterator[str]:
    histograms = all(family.kind is Kind.HISTOGRAM for family in families)
    yield f"## {title}\n"
    yield f"| name | {'buckets, and +Inf' if histograms else 'type'} | unit | labels | kept by | what it is |"
    yield "|---|---|---|---|---|---|"
    for family in families:
        kind = _buckets(family) if histograms else family.kind.value
        unit = family.unit.replace("_", " ")
        yield (
            f"| `{family.exposed_name}` | {kind} | {unit} | {_labels(family)} | {_KEEPER[family.source]} "
            f"| {family.help} |"
        )
    yield ""


def _buckets(family: Family) -> str:
    return ", ".join(f"{bound:g}" for bound in family.buckets)


def _labels(family: Family) -> str:
    scoped = [f"`{family.scope.value}`"] if family.scope in (Scope.POOL, Scope.GROUP) else []
    own = [
        f"`{label.name}`" + ("" if label.values is None else f" ({', '.join(label.values)})") for label in family.labels
    ]
    folded = [f"`{name}`" for name, has in (("tenant", family.per_tenant), ("class", family.per_class)) if has]
    return "; ".join(scoped + own + folded)


if __name__ == "__main__":
    sys.stdout.write(page())
