"""The written pages as scenes: what was served when, and what must be made of it. Reads files; judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvledger_agent.finding import Finding
from kvledger_agent.scrape.detect import WANTED, Detected, detect
from kvledger_agent.scrape.extras import page_of_document
from kvledger_agent.scrape.page import Page, parse_page
from kvledger_agent.scrape.reading import EngineReading, read
from kvledger_agent.scrape.symptoms import SymptomTracker

PAGES = Path(__file__).with_name("pages")
NS = 1_000_000_000
DEFAULT_INTERVAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One expectation file and its inputs."""

    name: str
    expected: Mapping[str, Any]

    @property
    def documents(self) -> dict[str, Any]:
        """The JSON beside the pages."""
        inputs = self.expected["inputs"]
        return {kind: json.loads((PAGES / inputs[kind]).read_text()) for kind in ("loads", "slots") if kind in inputs}

    def page(self, index: int = -1) -> Page:
        """One of the pages, the last by default; a load snapshot where there is no page."""
        metrics = self.expected["inputs"].get("metrics") or []
        return parsed(metrics[index]["file"]) if metrics else page_of_document(self.documents["loads"])

    def detected(self) -> Detected:
        """Whose page the last one is. Raises `UnknownEngine`."""
        return detect(self.page())

    def readings(self, index: int = -1, *, at_seconds: float = 0.0) -> tuple[EngineReading, ...]:
        """Readings of one of the pages."""
        page = self.page(index)
        known = detect(page)
        at_ns = round(at_seconds * NS)
        return read(
            known.profile, known.version_range, page, self.documents, monotonic_ns=at_ns, wall_ns=at_ns + 10**18
        )

    def served(self) -> Iterator[tuple[float, int]]:
        """Every scrape: its second, and which page was served then."""
        starts = [metric["at_seconds"] for metric in self.expected["inputs"].get("metrics") or [{"at_seconds": 0}]]
        interval = self.expected.get("scrape_interval_seconds", DEFAULT_INTERVAL_SECONDS)
        end = self.expected.get("hold_last_until_seconds", starts[-1])
        second = 0.0
        while second <= end:
            yield second, max(index for index, start in enumerate(starts) if start <= second)
            second += interval

    def findings(self) -> Iterator[tuple[float, dict[str, tuple[Finding, ...]]]]:
        """The findings of every rank after each scrape."""
        trackers: dict[int, SymptomTracker] = {}
        known: dict[int, tuple[EngineReading, ...]] = {}
        profile = self.detected().profile
        for second, index in self.served():
            if index not in known:
                known[index] = self.readings(index)
            now = {}
            for reading in known[index]:
                at_ns = round(second * NS)
                tracker = trackers.setdefault(reading.rank, SymptomTracker(profile))
                now[str(reading.rank)] = tracker.update(replace(reading, monotonic_ns=at_ns, wall_ns=at_ns + 10**18))
            yield second, now


@cache
def parsed(file: str) -> Page:
    """A page by the name of its file."""
    return parse_page((PAGES / file).read_bytes(), WANTED)


def scenes() -> list[Scene]:
    """All scenes, by name."""
    files = sorted(PAGES.glob("*.expected.json"))
    return [Scene(file.name.removesuffix(".expected.json"), json.loads(file.read_text())) for file in files]
