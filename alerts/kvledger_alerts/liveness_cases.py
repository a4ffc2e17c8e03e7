"""The promtool tests of who is there: an engine, its ledger, its agent; and of what only looks like their absence."""

from __future__ import annotations

from kvledger_alerts.cases import ENGINE, SCRAPED, Case, Firing, Series, engine, missing, silent, steady, up

DOWN, AGENT = "KvledgerEngineDown", "KvledgerAgentAbsent"
UNREADABLE = "KvledgerLedgerUnreadable"

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

CASES = (*DOWN_CASES, *UNREADABLE_CASES, *AGENT_CASES)
