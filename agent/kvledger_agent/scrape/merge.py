"""Ledgers and scraped engines as one fleet. An engine that is seen both ways is one, and its ledger wins. Pure."""

from __future__ import annotations

from dataclasses import replace

from kvledger_agent.fleet import SourceHealth
from kvledger_agent.observation import Observation, Totals
from kvledger_agent.scrape.sources import Seen

AT_THE_DOOR = "rejections_total"
"""Refused before the engine core hears of it: a ledger cannot count these, the engine's page does."""


def merged(ledgers: Seen, scraped: Seen) -> Seen:
    """Both looks as one, ledgers first. Where both know an engine, the ledger's gains what only its page has."""
    pages = {observation.identity.key: observation for observation in scraped[0]}
    observations = [_with_page(o, pages.pop(o.identity.key, None)) for o in ledgers[0]]
    known = {health.source for health in ledgers[1]}
    unread = known - {observation.identity.key for observation in observations}
    # A ledger that cannot be read stays a source with its trouble; its page is shown all the same.
    observations += [o for key, o in pages.items() if key not in known or key in unread]
    healths: tuple[SourceHealth, ...] = (*ledgers[1], *(h for h in scraped[1] if h.source not in known))
    return tuple(observations), healths


def _with_page(ledger: Observation, page: Observation | None) -> Observation:
    """The ledger's observation; refusals at the door are added, families that it does not keep are taken over."""
    if page is None or page.liveness.last_served:
        return ledger
    counters = {**page.totals.counters, **ledger.totals.counters}
    door, core = (o.totals.counters.get(AT_THE_DOOR) for o in (page, ledger))
    if door is not None and core is not None:
        counters[AT_THE_DOOR] = dict(core) | {labels: core.get(labels, 0.0) + value for labels, value in door.items()}
    histograms = {**page.totals.histograms, **ledger.totals.histograms}
    return replace(ledger, totals=Totals(counters=counters, histograms=histograms))
