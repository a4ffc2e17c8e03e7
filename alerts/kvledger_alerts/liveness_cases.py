"""The promtool tests of who is there: an engine, its ledger, its agent; and of what only looks like their absence."""

from __future__ import annotations

from kvledger_alerts.cases import ENGINE, SCRAPED, Case, Firing, Series, engine, growing, missing, silent, steady, up
from kvledger_alerts.causes import AGENT, DOWN, UNREADABLE

SOURCE, TELEMETRY, FAMILY = "KvledgerSourceFailing", "KvledgerTelemetryLost", "KvledgerFamilyMissing"

_GONE = Firing(
    labels={**ENGINE, "severity": "critical"},
    description="No process holds the ledger of engine golden:0; the agent shows its last state.",
)

DOWN_CASES = (
    Case(
        alert=DOWN,
        title="gone, its ledger still reported; the next start clears it",
        series=(
            engine("engine_up", f"{steady(1, 8)} {steady(0, 20)} {steady(1, 20)}"),
            engine("engine_closed", steady(0)),
        ),
        moments={**silent("2m45s"), "4m": (_GONE,), "6m": (_GONE,), **silent("7m")},
    ),
    Case(
        alert=DOWN,
        title="stopped cleanly: it drained and closed its ledger, which stays; a failed scrape changes nothing",
        series=(
            engine("engine_up", f"{steady(1, 8)} {steady(0, 10)} {missing(1)} {steady(0, 30)}"),
            engine("engine_closed", f"{steady(0, 8)} {steady(1, 10)} {missing(1)} {steady(1, 30)}"),
        ),
        moments=silent("2m15s", "3m15s", "4m30s", "5m", "9m"),
    ),
    Case(
        alert=DOWN,
        title="killed after a start that followed a clean stop",
        series=(
            engine("engine_up", f"{steady(0, 8)} {steady(1, 8)} {steady(0, 30)}"),
            engine("engine_closed", f"{steady(1, 8)} {steady(0, 38)}"),
        ),
        moments={**silent("1m45s", "4m"), "6m": (_GONE,)},
    ),
    Case(
        alert=DOWN,
        title="restarted in little more than a minute",
        series=(engine("engine_up", f"{steady(1, 8)} {steady(0, 5)} {steady(1, 20)}"),),
        moments=silent("2m30s", "3m", "4m", "5m"),
    ),
    Case(
        alert=DOWN,
        title="removed, with its ledger: nothing is reported any more",
        series=(engine("engine_up", f"{steady(1, 8)} stale {missing(30)}"),),
        moments=silent("3m", "5m", "9m"),
    ),
    Case(
        alert=DOWN,
        title="idle is not down",
        series=(engine("engine_up", steady(1)), engine("engine_idle", steady(1))),
        moments=silent("3m", "5m", "9m"),
    ),
)


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
    Case(
        alert=UNREADABLE,
        title="not readable in every second sample: the writer was busy",
        series=(_source(" ".join(["0 1"] * 20)),),
        moments=silent("3m", "5m", "9m"),
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
    Case(
        alert=AGENT,
        title="one failed scrape, and a restart",
        series=(up(f"{steady(1, 8)} 0 {steady(1, 8)} 0 0 0 {steady(1, 40)}"),),
        moments=silent("2m", "4m", "5m", "6m", "10m"),
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
    Case(
        alert=SOURCE,
        title="a restart of the engine costs a minute of samples",
        series=(_source(f"{steady(1, 60)} {steady(0, 4)} {steady(1, 60)}"),),
        moments=silent("15m", "17m", "20m", "25m"),
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
    Case(
        alert=TELEMETRY,
        title="one burst overwrites a ring, the agent starts anew, the collector misses an export",
        series=(
            _agents("events_lost_total", f"{steady(0, 20)} {steady(900, 20)} {steady(0, 40)}", source="golden:0"),
            _agents("ledger_overflows_total", steady(0), source="golden:0"),
            _agents("otlp_exports_total", growing(1)),
            _agents("otlp_failures_total", f"{steady(0, 20)} {steady(1, 60)}"),
        ),
        moments=silent("6m", "9m45s", "12m", "16m", "19m"),
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
                Firing(
                    labels={**ENGINE, "signal": "requests_waiting", "severity": "warning"},
                    description="Engine golden:0 reported requests_waiting within the last day, and reports it no "
                    "more.",
                ),
            ),
        },
    ),
    Case(
        alert=FAMILY,
        title="what an engine never reported is no loss",
        series=_reports(steady(0, 240)),
        moments=silent("14m", "25m", "50m"),
    ),
    Case(
        alert=FAMILY,
        title="an engine that was removed",
        series=_reports(f"{steady(1, 40)} stale {missing(100)}"),
        moments=silent("14m", "25m"),
    ),
    Case(
        alert=FAMILY,
        title="an engine that is down, and reports little",
        series=_reports(f"{steady(1, 40)} {steady(0, 100)}", up=f"{steady(1, 40)} {steady(0, 100)}"),
        moments=silent("14m", "25m"),
    ),
    Case(
        alert=FAMILY,
        title="gone for one failed scrape and a moment more",
        series=_reports(f"{steady(1, 40)} {steady(0, 8)} {steady(1, 100)}"),
        moments=silent("11m", "12m", "20m", "25m"),
    ),
)

CASES = (*DOWN_CASES, *UNREADABLE_CASES, *AGENT_CASES, *SOURCE_CASES, *TELEMETRY_CASES, *FAMILY_CASES)
