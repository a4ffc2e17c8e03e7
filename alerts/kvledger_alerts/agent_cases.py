"""The promtool tests of kvledger itself: sources, records, families, agents; and of what only looks like their loss."""

from __future__ import annotations

from kvledger_alerts.cases import (
    SCRAPED,
    Case,
    Firing,
    Series,
    engine,
    growing,
    missing,
    quiet,
    silent,
    steady,
    up,
    warning,
)
from kvledger_alerts.causes import AGENT, UNREADABLE

SOURCE, TELEMETRY, FAMILY = "KvledgerSourceFailing", "KvledgerTelemetryLost", "KvledgerFamilyMissing"


def _source(values: str) -> Series:
    return Series(name="kvledger_agent_source_success", labels={"source": "golden:0"}, values=values)


UNREADABLE_CASES = (
    Case(
        alert=UNREADABLE,
        title="not readable for a minute; the first good sample clears it",
        series=(_source(f"{steady(1, 8)} {steady(0, 20)} {steady(1, 20)}"),),
        moments={
            **silent("2m45s"),
            "4m15s": (
                Firing(
                    labels={"source": "golden:0", "severity": "warning"},
                    description="The agent at agent:9470 cannot read the ledger of golden:0.",
                ),
            ),
            **silent("8m"),
        },
    ),
    *quiet(
        UNREADABLE,
        "3m 5m 9m",
        {
            "not readable in every second sample: the writer was busy": (_source(" ".join(["0 1"] * 20)),),
        },
    ),
)


def _silent_agent(instance: str) -> Firing:
    return Firing(
        labels={"severity": "critical"},
        description=f"The agent at {instance} does not answer, or refuses with 503 because its last sample is too old.",
    )


AGENT_CASES = (
    Case(
        alert=AGENT,
        title="does not answer, or answers 503: Prometheus cannot tell, and need not",
        series=(up(f"{steady(1, 8)} {steady(0)}"),),
        moments={**silent("4m30s"), "5m": (_silent_agent(SCRAPED["instance"]),)},
    ),
    Case(
        alert=AGENT,
        title="is no target at all",
        series=(engine("engine_up", steady(1)),),
        moments={
            **silent("1m45s"),
            "2m": (
                Firing(
                    labels={"severity": "critical"},
                    description="Prometheus has no target for job kvledger.",
                    scraped={"job": "kvledger"},
                ),
            ),
        },
    ),
    *quiet(
        AGENT,
        "2m 4m 5m 6m 10m",
        {
            "one failed scrape, and a restart": (up(f"{steady(1, 8)} 0 {steady(1, 8)} 0 0 0 {steady(1, 40)}"),),
        },
    ),
)


SOURCE_CASES = (
    Case(
        alert=SOURCE,
        title="read in every second sample",
        series=(_source(" ".join(["0 1"] * 60)),),
        moments={
            **silent("4m"),
            "20m": (
                Firing(
                    labels={"source": "golden:0", "severity": "warning"},
                    description="The agent at agent:9470 reads golden:0 in only 48.78% of its samples.",
                ),
            ),
        },
    ),
    *quiet(
        SOURCE,
        "15m 17m 20m 25m",
        {
            "a restart of the engine costs a minute of samples": (
                _source(f"{steady(1, 60)} {steady(0, 4)} {steady(1, 60)}"),
            ),
        },
    ),
)


def _agents(name: str, values: str, **labels: str) -> Series:
    return Series(name=f"kvledger_agent_{name}", labels=labels, values=values)


def _lost(what: str, **labels: str) -> Firing:
    return Firing(labels={"severity": "warning", **labels}, description=f"The agent at agent:9470 loses {what}.")


TELEMETRY_CASES = (
    Case(
        alert=TELEMETRY,
        title="records are overwritten before they are read, again and again",
        series=(_agents("events_lost_total", growing(5), source="golden:0"),),
        moments={**silent("4m"), "10m": (_lost("records of golden:0 (100 in the window)", source="golden:0"),)},
    ),
    Case(
        alert=TELEMETRY,
        title="a ledger without room for what happens",
        series=(_agents("ledger_overflows_total", growing(1), source="golden:0"),),
        moments={"10m": (_lost("records of golden:0 (20 in the window)", source="golden:0"),)},
    ),
    Case(
        alert=TELEMETRY,
        title="an endpoint that takes nothing over OTLP",
        series=(_agents("otlp_exports_total", growing(1)), _agents("otlp_failures_total", growing(1))),
        moments={"10m": (_lost("what it exports over OTLP (100% of the exports)"),)},
    ),
    *quiet(
        TELEMETRY,
        "6m 9m45s 12m 16m 19m",
        {
            "one burst overwrites a ring, the agent starts anew, the collector misses an export": (
                _agents("events_lost_total", f"{steady(0, 20)} {steady(900, 20)} {steady(0, 40)}", source="golden:0"),
                _agents("ledger_overflows_total", steady(0), source="golden:0"),
                _agents("otlp_exports_total", growing(1)),
                _agents("otlp_failures_total", f"{steady(0, 20)} {steady(1, 60)}"),
            ),
        },
    ),
)


def _reports(values: str, up: str = steady(1, 240)) -> tuple[Series, ...]:
    return (
        engine("capability", values, signal="requests_waiting"),
        engine("capability", values, signal="pool_seconds_to_exhaustion"),
        engine("engine_up", up),
    )


FAMILY_CASES = (
    Case(
        alert=FAMILY,
        title="an upgrade took a family away: five minutes to see it, five to be sure",
        series=_reports(f"{steady(1, 40)} {steady(0, 200)}"),
        moments={
            **silent("14m"),
            "25m": (
                warning(
                    " reported requests_waiting within the last day, and reports it no more.", signal="requests_waiting"
                ),
            ),
        },
    ),
    *quiet(
        FAMILY,
        "11m 12m 14m 20m 25m 50m",
        {
            "what an engine never reported is no loss": _reports(steady(0, 240)),
            "an engine that was removed": _reports(f"{steady(1, 40)} stale {missing(100)}"),
            "an engine that is down, and reports little": _reports(
                f"{steady(1, 40)} {steady(0, 100)}", up=f"{steady(1, 40)} {steady(0, 100)}"
            ),
            "gone for one failed scrape and a moment more": _reports(
                f"{steady(1, 40)} {steady(0, 8)} {steady(1, 200)}"
            ),
        },
    ),
)

CASES = (*UNREADABLE_CASES, *AGENT_CASES, *SOURCE_CASES, *TELEMETRY_CASES, *FAMILY_CASES)
