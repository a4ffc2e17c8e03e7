"""The promtool tests of what goes wrong in an engine that lives, and of what only looks like it."""

from __future__ import annotations

from kvledger_alerts.cases import ENGINE, POOL, Case, Firing, engine, missing, pool, silent, steady

LEAK, CORRUPTION = "KvledgerBlockLeak", "KvledgerBlockCorruption"


def _leak(kind: str, count: int) -> Firing:
    return Firing(
        labels={**ENGINE, "kind": kind, "severity": "warning"},
        description=f"Engine golden:0: {count} open findings of kind {kind}.",
    )


LEAK_CASES = (
    Case(
        alert=LEAK,
        title="a finding is told at once; a failed scrape does not clear it; an engine started anew does",
        series=(
            engine(
                "findings",
                f"{steady(0, 8)} {steady(2, 8)} {missing(1)} {steady(2, 7)} {steady(0, 30)}",
                kind="excess_reference",
            ),
        ),
        moments={
            **silent("1m45s"),
            "2m": (_leak("excess_reference", 2),),
            "4m": (_leak("excess_reference", 2),),
            **silent("8m"),
        },
    ),
    Case(
        alert=LEAK,
        title="each kind that loses blocks, by its name",
        series=tuple(
            engine("findings", steady(count), kind=kind)
            for kind, count in (("lost_block", 1), ("pin_overdue", 2), ("finishing_overdue", 3))
        ),
        moments={"1m": (_leak("lost_block", 1), _leak("pin_overdue", 2), _leak("finishing_overdue", 3))},
    ),
    Case(
        alert=LEAK,
        title="an engine that is only scraped holds blocks while it is idle, or tells a usage that cannot be",
        series=(
            engine("findings", steady(1), kind="idle_hold"),
            engine("findings", steady(1), kind="usage_out_of_range"),
            engine("findings", steady(1), kind="waiting_without_running"),
        ),
        moments={"1m": (_leak("idle_hold", 1), _leak("usage_out_of_range", 1))},
    ),
    Case(
        alert=LEAK,
        title="more than a tenth of the pool is leaked",
        series=(pool("pool_leaked_blocks", steady(6)), pool("pool_capacity_blocks", steady(24))),
        moments={
            "1m": (
                Firing(
                    labels={**POOL, "severity": "critical"},
                    description="Engine golden:0: 25% of pool gpu is leaked.",
                ),
            )
        },
    ),
    Case(
        alert=LEAK,
        title="pins within their lease, and a pool full of live requests",
        series=(
            engine("findings", steady(0), kind="excess_reference"),
            engine("findings", steady(0), kind="pin_overdue"),
            pool("pool_pinned_blocks", steady(9), kind="transfer"),
            pool("pool_leaked_blocks", steady(0)),
            pool("pool_capacity_blocks", steady(24)),
            pool("pool_blocks", steady(24), state="active"),
        ),
        moments=silent("1m", "5m", "15m"),
    ),
    Case(
        alert=LEAK,
        title="an engine of which no findings are known",
        series=(pool("pool_capacity_blocks", steady(24)), pool("pool_blocks", steady(24), state="active")),
        moments=silent("1m", "5m", "15m"),
    ),
    Case(
        alert=LEAK,
        title="content that is in doubt is no leak: that is the other alert",
        series=(engine("findings", steady(1), kind="double_listed"),),
        moments=silent("1m", "5m"),
    ),
)


def _corruption(what: str, **labels: str) -> Firing:
    return Firing(labels={**ENGINE, "severity": "critical", **labels}, description=f"Engine golden:0: {what}.")


CORRUPTION_CASES = (
    Case(
        alert=CORRUPTION,
        title="a block listed twice",
        series=(engine("findings", f"{steady(0, 8)} {steady(1)}", kind="double_listed"),),
        moments={
            **silent("1m45s"),
            "2m": (_corruption("open findings of kind double_listed (1)", kind="double_listed"),),
        },
    ),
    Case(
        alert=CORRUPTION,
        title="a count that is too low or too high",
        series=(
            engine("invariant_violations", steady(-3), invariant="free"),
            engine("invariant_violations", steady(2), invariant="active"),
        ),
        moments={
            "1m": (
                _corruption("the count of free blocks is off (-3)", invariant="free"),
                _corruption("the count of active blocks is off (2)", invariant="active"),
            )
        },
    ),
    Case(
        alert=CORRUPTION,
        title="all in order, and a leak, which is the other alert",
        series=(
            engine("findings", steady(0), kind="double_listed"),
            engine("findings", steady(4), kind="excess_reference"),
            engine("invariant_violations", steady(0), invariant="free"),
        ),
        moments=silent("1m", "5m", "15m"),
    ),
)


def _verdict(word: str, values: str) -> tuple[Case, ...]:
    alert = f"KvledgerEngine{word}"
    fires = Firing(
        labels={**ENGINE, "severity": "critical"},
        description=f"Engine golden:0 is {word.lower()}: its requests wait and get nothing.",
    )
    other = "leaking" if word == "Stalled" else "stalled"
    return (
        Case(
            alert=alert,
            title=f"{word.lower()} for a minute: a failed scrape does not clear it, the first good sample does",
            series=(engine("verdict", values, verdict=word.lower()),),
            moments={**silent("3m15s"), "4m15s": (fires,), "5m": (fires,), **silent("8m")},
        ),
        Case(
            alert=alert,
            title=f"{word.lower()} in every second sample: it moves",
            series=(engine("verdict", " ".join(["1 0"] * 40), verdict=word.lower()),),
            moments=silent("2m", "5m", "9m"),
        ),
        Case(
            alert=alert,
            title="idle, or another verdict",
            series=(
                engine("verdict", steady(0), verdict=word.lower()),
                engine("verdict", steady(1), verdict=other),
                engine("engine_idle", steady(1)),
            ),
            moments=silent("2m", "5m", "15m"),
        ),
        Case(
            alert=alert,
            title="no verdict is known",
            series=(engine("engine_up", steady(1)),),
            moments=silent("2m", "5m", "15m"),
        ),
    )


_STUCK = f"{steady(0, 8)} {steady(1, 10)} {missing(1)} {steady(1, 5)} {steady(0, 20)}"

CASES = (*LEAK_CASES, *CORRUPTION_CASES, *_verdict("Stalled", _STUCK), *_verdict("Frozen", _STUCK))
