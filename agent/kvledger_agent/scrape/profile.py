"""What is known of an engine's pages, as data: names, units and meanings per version range. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Shape(StrEnum):
    """How a signal lies on the page.

    VALUE: the sum of a family's series. TOTAL: that sum over all of its names, not known if only some are there. BY:
    sums by the value of `label`. INFO: a number in `label` of a series whose value says nothing. HISTOGRAM: `_bucket`,
    `_sum` and `_count` of the name.
    """

    VALUE = "value"
    TOTAL = "total"
    BY = "by"
    INFO = "info"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """A range of releases whose pages are alike, told by what is on the page: all of `present`, none of `absent`."""

    name: str
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NameSince:
    """One name of a family, in the version ranges `since` to `until` (both included; None: without limit)."""

    name: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """One signal: under which names, in what shape and unit, and what its absence blinds.

    The value is multiplied by `scale`, and `offset` added. A signal in blocks whose `unit` is tokens is divided by the
    block size. `required`: a page of a version that should have the family and lacks it is incomplete. `only` keeps
    the series whose labels have these values, `words` maps the engine's words in `label` to the project's; a reading
    keeps the engine's. `always` are words that the family has from the start: one that is gone makes what it is a part
    of unknown. `ranked`: whether the family has the rank label where others do.
    """

    signal: str
    names: tuple[NameSince, ...]
    unit: str
    blind: str
    remedy: str
    shape: Shape = Shape.VALUE
    label: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    required: bool = True
    ranked: bool = True
    only: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    always: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneName:
    """Writes families that have one name only, which begins with `prefix`, from the version range `since` on.

    `remedy` switches them on.
    """

    prefix: str
    remedy: str
    since: str | None = None

    def __call__(self, signal: str, name: str, *, remedy: str | None = None, **known: Any) -> FamilySpec:
        """One such family; `known` are further fields of `FamilySpec`."""
        names = (NameSince(self.prefix + name, since=self.since),)
        return FamilySpec(signal=signal, names=names, remedy=remedy or self.remedy, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """What the numbers mean.

    `usage_includes_evictable`: whether blocks kept for reuse only count as used; None where it is not known.
    `stale_when_idle_seconds`: how old a gauge of an idle engine may be at most; infinite where it holds its last value,
    None where it is always fresh. `sampled_at_finish_only`: signals that a request enters when it ends.
    `usage_is_exact`: active blocks follow from usage × capacity. `lease_seconds`: how long blocks may be held for a
    peer after their request has ended, where transfers are in use.
    """

    usage_includes_evictable: bool | None
    stale_when_idle_seconds: float | None = None
    sampled_at_finish_only: frozenset[str] = frozenset()
    usage_is_exact: bool = False
    lease_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine. `verified`: these pages were read from a real, running engine of it.

    `documents` are further paths that are asked for with every scrape and may fail. `versions` are in order, oldest
    first. Series of a rank that differ in a label of `sum_over` are parts of one number; any others contradict each
    other, and the number is unknown. Of shards that say the same, told by a number in a label of `first_of`, the least
    is read. `totals`: of families with such a label, only the series with this value. `blind` is what this engine
    cannot tell, whatever is switched on.
    """

    engine: str
    title: str
    verified: bool
    default_paths: tuple[str, ...]
    prefixes: tuple[str, ...]
    markers: tuple[str, ...]
    versions: tuple[VersionRange, ...]
    families: tuple[FamilySpec, ...]
    semantics: Semantics
    blind: str
    documents: tuple[str, ...] = ()
    rank_label: str | None = None
    model_labels: tuple[str, ...] = ("model_name",)
    first_of: tuple[str, ...] = ()
    totals: Mapping[str, str] = field(default_factory=dict)
    sum_over: tuple[str, ...] = ()
    pool: str = "kv"
    traces_of_transfers: tuple[str, ...] = ()

    def words_of(self, signal: str) -> Mapping[str, str]:
        """The project's words for an engine's in one signal; empty where it has none."""
        return next((spec.words for spec in self.families if spec.signal == signal), {})

    def always_of(self, signal: str) -> tuple[str, ...]:
        """An engine's words that one signal has from the start."""
        return next((spec.always for spec in self.families if spec.signal == signal), ())

    def covers(self, name: NameSince, version: str | None) -> bool:
        """Whether a page of that version range may have the name; of an unknown one, only names that are still in use.

        An earlier name may have meant something else.
        """
        order = [known.name for known in self.versions]
        if version is None:
            return name.until is None
        at = order.index(version)
        first = 0 if name.since is None else order.index(name.since)
        last = len(order) - 1 if name.until is None else order.index(name.until)
        return first <= at <= last
