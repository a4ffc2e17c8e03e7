"""What a metric family is: its kind, unit, scope, source and labels.

Owns the names under which families and their labels are exposed; never holds a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "kvledger_"
COMMON_LABELS = ("engine", "model", "rank")


class Kind(StrEnum):
    """The exposition type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """What one series describes. AGENT families carry none of the common labels."""

    ENGINE = "engine"
    POOL = "pool"
    GROUP = "group"
    AGENT = "agent"


class Source(StrEnum):
    """Where a value is kept: LEDGER by the engine, READER computed from one snapshot, AGENT known to the agent only."""

    LEDGER = "ledger"
    READER = "reader"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Label:
    """One label of a family: its name and its closed set of values, or None where the set is open."""

    name: str
    values: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family.

    `name` has no prefix, and no unit where the family is a histogram of seconds. `unit` is what a value counts in; an
    exporter may state it as OpenMetrics UNIT only where the exposed name ends in it. `buckets` are upper bounds in
    `unit`, strictly rising, without +Inf.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    scope: Scope
    source: Source
    labels: tuple[Label, ...] = ()
    per_tenant: bool = False
    per_class: bool = False
    buckets: tuple[float, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name on `/metrics`, in rules and on boards; a histogram's series add `_bucket`, `_sum`, `_count`."""
        timed = self.kind is Kind.HISTOGRAM and self.unit == "seconds" and not self.name.endswith("_seconds")
        return PREFIX + self.name + ("_seconds" if timed else "")

    @property
    def label_names(self) -> tuple[str, ...]:
        """All label names in exposition order: common, pool or group, own, tenant, class."""
        common = () if self.scope is Scope.AGENT else COMMON_LABELS
        scoped = (self.scope.value,) if self.scope in (Scope.POOL, Scope.GROUP) else ()
        own = tuple(label.name for label in self.labels)
        return common + scoped + own + ("tenant",) * self.per_tenant + ("class",) * self.per_class
