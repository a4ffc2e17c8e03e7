"""What a live endpoint reports, what it does not, what that blinds, and how to switch it on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger_agent.scrape.conditions import idle_hold_seconds, judged_kinds
from kvledger_agent.scrape.extras import with_documents
from kvledger_agent.scrape.profile import EngineProfile, FamilySpec
from kvledger_agent.scrape.reading import EngineReading
from kvledger_agent.scrape.scrape_source import Scraped
from kvledger_agent.scrape.signals import present_name

UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One signal. `family` is the name it has on the page, or should have; `due` that this version should have it.

    `readable` is False for a family that is there and gives no value: damaged, or no number.
    """

    signal: str
    family: str
    reported: bool
    readable: bool
    due: bool
    blind: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """One endpoint. `verified`: pages of this engine were read from a real, running one; `missing` are due families."""

    url: str
    engine: str
    title: str
    verified: bool
    version_range: str | None
    ranks: tuple[int, ...]
    models: tuple[str, ...]
    usage_includes_evictable: bool | None
    stale_when_idle_seconds: float | None
    sampled_at_finish_only: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    missing: tuple[str, ...]
    damaged_lines: int
    truncated: bool
    judged: tuple[str, ...]
    idle_hold_seconds: float
    blind: str

    @property
    def complete(self) -> bool:
        """Whether the page has all that its version should have, and could be read whole."""
        return not (self.missing or self.damaged_lines or self.truncated)


def checkup(url: str, scraped: Scraped) -> Checkup:
    """What one scrape tells of an endpoint."""
    profile, first = scraped.detected.profile, scraped.readings[0]
    rows = tuple(row for spec in profile.families if (row := _capability(spec, scraped)) is not None)
    return Checkup(
        url=url,
        engine=profile.engine,
        title=profile.title,
        verified=profile.verified,
        version_range=scraped.detected.version_range,
        ranks=tuple(reading.rank for reading in scraped.readings),
        models=tuple(sorted({reading.model for reading in scraped.readings if reading.model})),
        usage_includes_evictable=profile.semantics.usage_includes_evictable,
        stale_when_idle_seconds=profile.semantics.stale_when_idle_seconds,
        sampled_at_finish_only=tuple(sorted(profile.semantics.sampled_at_finish_only)),
        capabilities=rows,
        missing=first.missing_families,
        damaged_lines=scraped.page.damaged_lines,
        truncated=scraped.page.truncated,
        judged=tuple(kind.word for kind in judged_kinds(profile, first)),
        idle_hold_seconds=idle_hold_seconds(profile, first),
        blind=profile.blind,
    )


def _capability(spec: FamilySpec, scraped: Scraped) -> Capability | None:
    """One row; None for a family that this version cannot have, where another row has the signal."""
    profile, version = scraped.detected.profile, scraped.detected.version_range
    page = with_documents(scraped.page, scraped.documents)
    there = present_name(profile, version, page, spec)
    names = [name.name for name in spec.names if profile.covers(name, version)]
    signal = spec.signal.removeprefix("config_")
    if not names and any(other is not spec and other.signal.endswith(signal) for other in profile.families):
        return None
    return Capability(
        signal=signal,
        family=there or (names or [spec.names[0].name])[0],
        reported=there is not None,
        readable=there is not None and _readable(profile, signal, scraped.readings),
        due=spec.required and bool(names),
        blind=spec.blind,
        remedy=spec.remedy,
    )


def _readable(profile: EngineProfile, signal: str, readings: tuple[EngineReading, ...]) -> bool:
    """Whether some rank has a value; signals that a reading has under no name of their own are taken to have one."""
    own = "block_bytes" if signal == "pool_bytes" else signal
    return any(getattr(reading, own, 0) is not None for reading in readings)
