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
    series = [
        labels
        for spec in profile.families
        for name in spec.names
        for labels, _ in page.samples(_sample_name(spec, name.name))
    ]
    texts = {labels[profile.rank_label] for labels in series if profile.rank_label in labels}
    found = {rank for text in texts if (rank := _rank(text)) is not None}
    return tuple(sorted(found)[:MAX_RANKS]) if texts else (0,) if series else ()


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
    """The series of one rank. Those without a rank label are its own where it is the only one, else nobody's."""

    def __init__(self, profile: EngineProfile, version: str | None, page: Page, rank: int, *, alone: bool) -> None:
        self.profile, self._version, self._page, self._rank, self._alone = profile, version, page, rank, alone
        self._specs = {spec.signal: spec for spec in profile.families}

    def number(self, signal: str) -> float | None:
        """A signal's value in the unit of the page; None where it is not known."""
        spec = self._specs.get(signal)
        if spec is None or spec.shape not in (Shape.VALUE, Shape.INFO, Shape.TOTAL):
            return None
        if spec.shape is Shape.TOTAL:
            return self._over_all_names(spec)
        name, own = self._own(spec)
        if name is None or not own or self._unsure(name):
            return None
        if spec.shape is Shape.INFO:
            values = [_parse(labels.get(spec.label or "")) for labels, _ in own]
            known = values[0] if len(set(values)) == 1 else None
        else:
            known = math.fsum(value for _, value in own) if all(math.isfinite(v) for _, v in own) else None
        return None if known is None else known * spec.scale + spec.offset

    def _over_all_names(self, spec: FamilySpec) -> float | None:
        """The sum over all names of a signal; None where there is none, or a part of it is not known."""
        names = [name.name for name in spec.names if self.profile.covers(name, self._version)]
        there = [name for name in names if self._page.has(name) or self._unsure(name)]
        parts = [None if self._unsure(name) else self._total(name, spec) for name in there]
        known = [part for part in parts if part is not None]
        return math.fsum(known) if known and len(known) == len(parts) else None

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
        if name is None or not own or self._unsure(name) or not all(math.isfinite(v) and v >= 0 for _, v in own):
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
        return math.fsum(v for _, v in own) if own and all(math.isfinite(v) for _, v in own) else None

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
        own = [(k, v) for k, v in self._mine(name) if all(k.get(label) == text for label, text in spec.only.items())]
        for label, text in self.profile.first_of.items():
            preferred = [(k, v) for k, v in own if k.get(label, text) == text]
            own = preferred or own
        return own

    def _mine(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        label = self.profile.rank_label or ""
        return (
            (labels, value)
            for labels, value in self._page.samples(name)
            if (_rank(labels[label]) == self._rank if label in labels else self._alone)
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
