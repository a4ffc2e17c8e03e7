"""Ledgers and scraped engines as one fleet. An engine that is seen both ways is one, and its ledger wins. Pure."""

from __future__ import annotations

from dataclasses import replace

from kvledger_agent.observation import Observation, Series, Totals
from kvledger_agent.scrape.sources import Seen

AT_THE_DOOR = "rejections_total"
"""Refused before the engine core hears of it: a ledger cannot count these, the engine's page does."""


class Pages:
    """One look at all pages. `doors`, kept by the caller from look to look, are engines whose page has ever counted
    refusals at the door.
    """

    def __init__(self, scraped: Seen, doors: set[str] | None = None) -> None:
        self._scraped = scraped
        self._pages = {observation.identity.key: observation for observation in scraped[0]}
        self._doors = set() if doors is None else doors
        self._doors |= {key for key, page in self._pages.items() if AT_THE_DOOR in page.totals.counters}

    def complete(self, ledger: Observation) -> Observation:
        """A ledger's observation with what only its engine's page has: refusals at the door are added, families that
        the ledger does not keep are taken over. It is to be judged afterwards.

        A page that cannot be read now makes no counter fall: its refusals stand still, and are unknown once it is gone.
        """
        key = ledger.identity.key
        return _with_page(ledger, self._pages.get(key), key in self._doors)

    def beside(self, ledgers: Seen) -> Seen:
        """All engines, ledgers first, each completed already; a page is an engine of its own where no ledger is read.

        A ledger that cannot be read stays a source with its trouble; its page is shown all the same.
        """
        read = {observation.identity.key for observation in ledgers[0]}
        known = {health.source for health in ledgers[1]} | read
        pages = tuple(page for key, page in self._pages.items() if key not in read)
        healths = (*ledgers[1], *(health for health in self._scraped[1] if health.source not in known))
        return (*ledgers[0], *pages), healths


def _with_page(ledger: Observation, page: Observation | None, has_door: bool) -> Observation:
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
