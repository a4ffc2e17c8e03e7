"""One rank's view of a page: which series are its own, and a signal's value among them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from kvledger_agent.observation import HistogramView
from kvledger_agent.scrape.page import Page
from kvledger_agent.scrape.profile import EngineProfile, FamilySpec, Shape

MAX_RANKS = 256
Own = list[tuple[dict[str, str], float]]


def ranks_of(profile: EngineProfile, page: Page) -> tuple[int, ...]:
    """The ranks on a page; `(0,)` where no series has a label for them, none where no series can be read."""
    texts = {labels.get(profile.rank_label or "") for labels in _all_labels(profile, page)}
    found = {rank for text in texts if text is not None and (rank := _rank(text)) is not None}
    return tuple(sorted(found)[:MAX_RANKS]) if texts - {None} else (0,) if texts else ()


def is_labelled(profile: EngineProfile, page: Page) -> bool:
    """Whether any series has the engine's rank label."""
    return any(profile.rank_label in labels for labels in _all_labels(profile, page))


def _all_labels(profile: EngineProfile, page: Page) -> Iterator[dict[str, str]]:
    names = {_sample_name(spec, name.name): None for spec in profile.families for name in spec.names}
    return (labels for name in names for labels, _ in page.samples(name))


def _rank(text: str) -> int | None:
    """The rank that a label's value says; None for one that is no rank."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def present_name(profile: EngineProfile, version: str | None, page: Page, spec: FamilySpec) -> str | None:
    """The name under which a signal is on the page."""
    for name in spec.names:
        if profile.covers(name, version) and page.has(_sample_name(spec, name.name)):
            return name.name
    return None


def missing_families(profile: EngineProfile, version: str | None, page: Page) -> tuple[str, ...]:
    """Families that a page of this version should have and lacks, by their present-day name."""
    missing: dict[str, None] = {}
    for spec in profile.families:
        due = [name.name for name in spec.names if profile.covers(name, version)]
        if spec.required and due and present_name(profile, version, page, spec) is None:
            missing[due[0]] = None
    return tuple(missing)


def reported_signals(profile: EngineProfile, version: str | None, page: Page) -> frozenset[str]:
    """Signals of which the page has the family."""
    return frozenset(s.signal for s in profile.families if present_name(profile, version, page, s) is not None)


class RankPage:
    """The series of one rank. Series without a rank label are its own where it is the only rank, and the family never
    has the label, or no family of the page does.
    """

    def __init__(
        self, profile: EngineProfile, version: str | None, page: Page, ranks: tuple[int, ...], rank: int
    ) -> None:
        self.profile, self._version, self._page, self._rank = profile, version, page, rank
        self._alone, self._labelled = len(ranks) == 1, is_labelled(profile, page)
        self._specs = {spec.signal: spec for spec in profile.families}

    def number(self, signal: str) -> float | None:
        """A signal's value in the unit of the page; None where it is not known."""
        spec = self._specs.get(signal)
        if spec is None or spec.shape not in (Shape.VALUE, Shape.INFO, Shape.TOTAL):
            return None
        if spec.shape is Shape.TOTAL:
            return self._over_all_names(spec)
        name, own = self._own(spec)
        if name is None or not own or self._unsure(name) or (spec.shape is Shape.VALUE and self._doubtful(own)):
            return None
        if spec.shape is Shape.INFO:
            values = [_parse(labels.get(spec.label or "")) for labels, _ in own]
            known = values[0] if len(set(values)) == 1 else None
        else:
            known = math.fsum(value for _, value in own) if all(math.isfinite(v) for _, v in own) else None
        return None if known is None else known * spec.scale + spec.offset

    def _over_all_names(self, spec: FamilySpec) -> float | None:
        """The sum over all names of a signal; None where none of them is there, NaN where some are."""
        names = [name.name for name in spec.names if self.profile.covers(name, self._version)]
        if not any(self._page.has(name) or name in self._page.damaged for name in names):
            return None
        parts = [None if self._unsure(name) else self._total(name, spec) for name in names]
        known = [part for part in parts if part is not None]
        return math.fsum(known) if len(known) == len(parts) else math.nan

    def unit(self, signal: str) -> str:
        """The unit of a signal on the page."""
        spec = self._specs.get(signal)
        return spec.unit if spec else ""

    def by_word(self, signal: str) -> dict[str, float] | None:
        """A signal by label value, in the engine's words; None where it is not known."""
        spec = self._specs.get(signal)
        if spec is None or spec.shape is not Shape.BY:
            return None
        name, own = self._own(spec)
        own = [(labels, value) for labels, value in own if spec.label in labels]
        if name is None or not own or self._unsure(name) or self._doubtful(own, spec.label):
            return None
        if not all(math.isfinite(value) and value >= 0 for _, value in own):
            return None
        sums: dict[str, float] = {}
        for labels, value in own:
            word = labels[spec.label or ""]
            sums[word] = sums.get(word, 0.0) + value
        return sums

    def histogram(self, signal: str) -> HistogramView | None:
        """A histogram with the page's own bounds; None where any part of it is not known or does not fit."""
        spec = self._specs.get(signal)
        if spec is None or spec.shape is not Shape.HISTOGRAM:
            return None
        name, own = self._own(spec)
        if name is None or any(self._unsure(f"{name}{part}") for part in ("_bucket", "_sum", "_count")):
            return None
        if self._doubtful(own, "le"):
            return None
        total, summed = self._total(f"{name}_count", spec), self._total(f"{name}_sum", spec)
        cumulative: dict[float, float] = {}
        for labels, value in own:
            bound = _parse(labels.get("le"))
            if bound is None or not math.isfinite(value):
                return None
            cumulative[bound] = cumulative.get(bound, 0.0) + value
        return _view(cumulative, total, summed)

    def model(self) -> str | None:
        """The model's name, from the first of the rank's series that has one."""
        for name in self._page.families:
            for labels, _ in self._mine(name):
                for label in self.profile.model_labels:
                    if labels.get(label):
                        return labels[label]
        return None

    def _total(self, name: str, spec: FamilySpec) -> float | None:
        own = self._kept(name, spec)
        sure = own and not self._doubtful(own) and all(math.isfinite(value) for _, value in own)
        return math.fsum(value for _, value in own) if sure else None

    def _doubtful(self, own: Own, by: str | None = None) -> bool:
        """Whether series that should be one, or one for each value of `by`, differ in labels that are no parts."""
        seen: dict[str | None, set[frozenset[tuple[str, str]]]] = {}
        for labels, _ in own:
            rest = frozenset((k, v) for k, v in labels.items() if k != by and k not in self.profile.sum_over)
            seen.setdefault(labels.get(by or ""), set()).add(rest)
        return any(len(kinds) > 1 for kinds in seen.values())

    def _own(self, spec: FamilySpec) -> tuple[str | None, Own]:
        """Under which of its names a signal has series of this rank, and these."""
        for name in spec.names:
            if not self.profile.covers(name, self._version):
                continue
            own = self._kept(_sample_name(spec, name.name), spec)
            if own:
                return name.name, own
        return None, []

    def _kept(self, name: str, spec: FamilySpec) -> Own:
        own = [
            (k, v)
            for k, v in self._mine(name, ranked=spec.ranked)
            if all(k.get(label) == text for label, text in spec.only.items())
        ]
        totals = self.profile.totals.items()
        own = [(labels, value) for labels, value in own if all(labels.get(k, text) == text for k, text in totals)]
        for label in self.profile.first_of:
            shards = [shard for labels, _ in own if (shard := _rank(labels.get(label, ""))) is not None]
            if shards:
                own = [(labels, value) for labels, value in own if _rank(labels.get(label, "")) == min(shards)]
        return own

    def _mine(self, name: str, *, ranked: bool = True) -> Iterator[tuple[dict[str, str], float]]:
        label = self.profile.rank_label or ""
        unlabelled = self._alone and not (ranked and self._labelled)
        return (
            (labels, value)
            for labels, value in self._page.samples(name)
            if (_rank(labels[label]) == self._rank if label in labels else unlabelled)
        )

    def _unsure(self, name: str) -> bool:
        return self._page.truncated or name in self._page.damaged


def _sample_name(spec: FamilySpec, name: str) -> str:
    return f"{name}_bucket" if spec.shape is Shape.HISTOGRAM else name


def _view(cumulative: Mapping[float, float], total: float | None, summed: float | None) -> HistogramView | None:
    """Buckets from cumulative counts. The count must agree with the bucket above every bound."""
    last = cumulative.get(math.inf)
    bounds = tuple(sorted(bound for bound in cumulative if math.isfinite(bound)))
    if last is None or total is None or summed is None or last != total or not bounds:
        return None
    counts = np.diff([0.0, *(cumulative[bound] for bound in bounds), last])
    return None if (counts < 0).any() else HistogramView(bounds=bounds, buckets=counts, sum=summed)


def _parse(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
