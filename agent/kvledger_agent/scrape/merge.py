"""Ledgers and scraped engines as one fleet. An engine that is seen both ways is one, and its ledger wins. Pure."""

from __future__ import annotations

from dataclasses import replace

from kvledger_agent.fleet import SourceHealth
from kvledger_agent.observation import Observation, Series, Totals
from kvledger_agent.scrape.sources import Seen

AT_THE_DOOR = "rejections_total"
"""Refused before the engine core hears of it: a ledger cannot count these, the engine's page does."""


def merged(ledgers: Seen, scraped: Seen, doors: set[str] | None = None) -> Seen:
    """Both looks as one, ledgers first. Where both know an engine, the ledger's gains what only its page has.

    `doors`, kept by the caller from look to look, are engines whose page has ever counted refusals at the door.
    """
    doors = set() if doors is None else doors
    pages = {observation.identity.key: observation for observation in scraped[0]}
    doors |= {key for key, page in pages.items() if AT_THE_DOOR in page.totals.counters}
    observations = [_with_page(o, pages.pop(o.identity.key, None), o.identity.key in doors) for o in ledgers[0]]
    known = {health.source for health in ledgers[1]}
    unread = known - {observation.identity.key for observation in observations}
    # A ledger that cannot be read stays a source with its trouble; its page is shown all the same.
    observations += [o for key, o in pages.items() if key not in known or key in unread]
    healths: tuple[SourceHealth, ...] = (*ledgers[1], *(h for h in scraped[1] if h.source not in known))
    return tuple(observations), healths


def _with_page(ledger: Observation, page: Observation | None, has_door: bool) -> Observation:
    """The ledger's observation; refusals at the door are added, families that it does not keep are taken over.

    A page that cannot be read now makes no counter fall: its refusals stand still, and are unknown once it is gone.
    """
    if page is None:
        return _with_refusals(ledger, None) if has_door else ledger
    door, core = (o.totals.counters.get(AT_THE_DOOR) for o in (page, ledger))
    both = ledger
    if not page.liveness.last_served:
        counters = {**page.totals.counters, **ledger.totals.counters}
        histograms = {**page.totals.histograms, **ledger.totals.histograms}
        both = replace(ledger, totals=Totals(counters=counters, histograms=histograms))
    if door is None:
        return _with_refusals(both, None) if has_door else both
    return _with_refusals(both, dict(core or {}) | {k: (core or {}).get(k, 0.0) + value for k, value in door.items()})


def _with_refusals(observation: Observation, refusals: Series | None) -> Observation:
    counters = {name: series for name, series in observation.totals.counters.items() if name != AT_THE_DOOR}
    if refusals is not None:
        counters[AT_THE_DOOR] = refusals
    return replace(observation, totals=Totals(counters=counters, histograms=observation.totals.histograms))
