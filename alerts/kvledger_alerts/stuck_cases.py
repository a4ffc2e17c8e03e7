"""The promtool tests of an engine that does not move or is gone, and of what only looks like it."""

from __future__ import annotations

from kvledger_alerts.cases import ENGINE, WHO, Case, Firing, critical, engine, missing, quiet, silent, steady
from kvledger_alerts.causes import DOWN

_GONE = Firing(
    labels={**ENGINE, "severity": "critical"},
    description=f"No process holds the ledger of engine {WHO}; the agent shows its last state.",
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
        title="killed after a start that followed a clean stop",
        series=(
            engine("engine_up", f"{steady(0, 8)} {steady(1, 8)} {steady(0, 30)}"),
            engine("engine_closed", f"{steady(1, 8)} {steady(0, 38)}"),
        ),
        moments={**silent("1m45s", "4m"), "6m": (_GONE,)},
    ),
    *quiet(
        DOWN,
        "2m15s 2m30s 3m 3m15s 4m 4m30s 5m 9m",
        {
            "stopped cleanly: it drained and closed its ledger, which stays; a failed scrape changes nothing": (
                engine("engine_up", f"{steady(1, 8)} {steady(0, 10)} {missing(1)} {steady(0, 30)}"),
                engine("engine_closed", f"{steady(0, 8)} {steady(1, 10)} {missing(1)} {steady(1, 30)}"),
            ),
            "restarted in little more than a minute": (
                engine("engine_up", f"{steady(1, 8)} {steady(0, 5)} {steady(1, 30)}"),
            ),
            "removed, with its ledger: nothing is reported any more": (
                engine("engine_up", f"{steady(1, 8)} stale {missing(30)}"),
            ),
            "idle is not down": (engine("engine_up", steady(1)), engine("engine_idle", steady(1))),
        },
    ),
)


def _stuck(word: str) -> tuple[Case, ...]:
    """An engine that does not move, told by its verdict."""
    alert, verdict = f"KvledgerEngine{word}", word.lower()
    fires = critical(f" is {verdict}: its requests wait and get nothing.")
    values = f"{steady(0, 8)} {steady(1, 10)} {missing(1)} {steady(1, 5)} {steady(0, 20)}"
    return (
        Case(
            alert=alert,
            title=f"{verdict} for a minute: a failed scrape does not clear it, the first good sample does",
            series=(engine("verdict", values, verdict=verdict),),
            moments={**silent("3m15s"), "4m15s": (fires,), "5m": (fires,), **silent("8m")},
        ),
        *quiet(
            alert,
            "2m 5m 9m 15m",
            {
                f"{verdict} in every second sample: it moves": (
                    engine("verdict", " ".join(["1 0"] * 40), verdict=verdict),
                ),
                "idle, or another verdict": (
                    engine("verdict", steady(0), verdict=verdict),
                    engine("verdict", steady(1), verdict="leaking" if word == "Stalled" else "stalled"),
                    engine("engine_idle", steady(1)),
                ),
                "no verdict is known": (engine("engine_up", steady(1)),),
            },
        ),
    )


CASES = (*DOWN_CASES, *_stuck("Stalled"), *_stuck("Frozen"))
