"""Whose page it is, and of which range of releases, by the families on it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.families.family import PREFIX
from kvledger_agent.scrape.engines import PROFILES
from kvledger_agent.scrape.errors import UnknownEngine
from kvledger_agent.scrape.page import Page
from kvledger_agent.scrape.profile import EngineProfile, VersionRange

WANTED: tuple[str, ...] = tuple(dict.fromkeys(prefix for profile in PROFILES for prefix in profile.prefixes))
"""What a page is parsed for: the prefixes of every known engine."""
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Detected:
    """The engine, and the range of its releases; None where no range fits what is on the page."""

    profile: EngineProfile
    version_range: str | None


def detect(page: Page, *, seen: tuple[str, ...] = ()) -> Detected:
    """Whose page it is. `seen` are names on it, for the message. Raises `UnknownEngine`."""
    for profile in PROFILES:
        if any(page.has(name) for name in profile.markers):
            return Detected(profile, next((v.name for v in profile.versions if _fits(v, page)), None))
    if any(name.startswith(PREFIX) for name in (*page.families, *seen)):
        raise UnknownEngine("this is a kvledger agent's page: give the engine's own address, or ask the agent's API")
    named = ", ".join((*page.families, *seen)[:_MOST_NAMED]) or "none"
    known = ", ".join(profile.title for profile in PROFILES)
    raise UnknownEngine(f"a metrics page of no engine known here (families on it: {named}); known are {known}")


def _fits(version: VersionRange, page: Page) -> bool:
    return all(map(page.has, version.present)) and not any(map(page.has, version.absent))
