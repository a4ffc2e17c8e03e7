"""The promtool tests of what goes wrong in an engine that lives, and of what only looks like it."""

from __future__ import annotations

from kvledger_alerts.cases import ENGINE, POOL, Case, Firing, Series, engine, growing, missing, pool, silent, steady
from kvledger_alerts.causes import CORRUPTION, LEAK

INVARIANT, IDLE, RELEASE = "KvledgerInvariantBroken", "KvledgerIdleHold", "KvledgerSlowRelease"


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
        title="an engine that is only scraped tells a usage that cannot be; its idle hold is the other alert",
        series=(
            engine("findings", steady(1), kind="idle_hold"),
            engine("findings", steady(1), kind="usage_out_of_range"),
            engine("findings", steady(1), kind="waiting_without_running"),
        ),
        moments={"1m": (_leak("usage_out_of_range", 1),)},
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


CORRUPTION_CASES = (
    Case(
        alert=CORRUPTION,
        title="a block listed twice",
        series=(engine("findings", f"{steady(0, 8)} {steady(1)}", kind="double_listed"),),
        moments={
            **silent("1m45s"),
            "2m": (
                Firing(
                    labels={**ENGINE, "severity": "critical", "kind": "double_listed"},
                    description="Engine golden:0: 1 open findings of kind double_listed.",
                ),
            ),
        },
    ),
    Case(
        alert=CORRUPTION,
        title="all in order, and a leak, which is the other alert",
        series=(
            engine("findings", steady(0), kind="double_listed"),
            engine("findings", steady(4), kind="excess_reference"),
            engine("invariant_violations", steady(3), invariant="free"),
        ),
        moments=silent("1m", "5m", "15m"),
    ),
)


def _off(invariant: str, by: int) -> Firing:
    return Firing(
        labels={**ENGINE, "severity": "critical", "invariant": invariant},
        description=f"Engine golden:0: the count of {invariant} blocks is off by {by}.",
    )


INVARIANT_CASES = (
    Case(
        alert=INVARIANT,
        title="a count that is too low or too high",
        series=(
            engine("invariant_violations", steady(-3), invariant="free"),
            engine("invariant_violations", steady(2), invariant="active"),
        ),
        moments={"1m": (_off("free", -3), _off("active", 2))},
    ),
    Case(
        alert=INVARIANT,
        title="counts that hold: what is off for one publication is not reported as off",
        series=(engine("invariant_violations", steady(0), invariant="free"),),
        moments=silent("1m", "5m", "15m"),
    ),
)


def _idle(blocks: int) -> Firing:
    return Firing(
        labels={**ENGINE, "severity": "warning"},
        description=f"Engine golden:0 is idle and holds blocks that no pin explains ({blocks}).",
    )


def _resting(active: float, pinned: float, idle: str) -> tuple[Series, ...]:
    return (
        pool("pool_blocks", steady(active), state="active"),
        pool("pool_blocks", steady(3), state="cached"),
        pool("pool_pinned_blocks", steady(pinned), kind="transfer"),
        engine("engine_idle", idle),
    )


IDLE_CASES = (
    Case(
        alert=IDLE,
        title="no work, and four blocks held: after five minutes and the window's two",
        series=_resting(4, 0, f"{steady(0, 8)} {steady(1, 72)}"),
        moments={**silent("6m"), "9m": (_idle(4),)},
    ),
    Case(
        alert=IDLE,
        title="a page that tells the hold as a finding",
        series=(engine("findings", steady(1), kind="idle_hold"),),
        moments={**silent("4m"), "6m": (_idle(1),)},
    ),
    Case(
        alert=IDLE,
        title="four blocks held, and four of them pinned by a transfer",
        series=_resting(4, 4, steady(1)),
        moments=silent("6m", "9m", "19m"),
    ),
    Case(
        alert=IDLE,
        title="idle now and then, between two requests",
        series=_resting(4, 0, " ".join(["1 1 1 0"] * 20)),
        moments=silent("6m", "9m", "19m"),
    ),
    Case(
        alert=IDLE,
        title="idle with blocks kept for reuse, and an engine that does not say what is pinned",
        series=(*_resting(0, 0, steady(1))[:3], engine("engine_idle", steady(1))),
        moments=silent("6m", "9m", "19m"),
    ),
)


def _releases(fast: float, slow: float, cause: str = "disconnect") -> tuple[Series, ...]:
    """Releases of each 15 s: those within 0.1 s, and those within 10 s."""
    every = fast + slow
    return (
        engine("release_seconds_bucket", growing(fast), cause=cause, le="0.1"),
        engine("release_seconds_bucket", growing(fast), cause=cause, le="1.0"),
        engine("release_seconds_bucket", growing(every), cause=cause, le="10.0"),
        engine("release_seconds_bucket", growing(every), cause=cause, le="+Inf"),
        engine("release_seconds_count", growing(every), cause=cause),
    )


RELEASE_CASES = (
    Case(
        alert=RELEASE,
        title="half of the clients that go away leave their blocks behind for seconds",
        series=_releases(1, 1),
        moments={
            **silent("1m"),
            "5m": (
                Firing(
                    labels={**ENGINE, "severity": "warning", "cause": "disconnect"},
                    description="Engine golden:0: P95 from the end of a request (disconnect) to its last block given "
                    "back: 9.1s.",
                ),
            ),
        },
    ),
    Case(
        alert=RELEASE,
        title="a request that has ended holds blocks for a minute",
        series=(engine("oldest_finishing_seconds", growing(15)),),
        moments={
            **silent("1m"),
            "6m": (
                Firing(
                    labels={**ENGINE, "severity": "warning"},
                    description="Engine golden:0: the oldest request that has ended and still holds blocks: 5m 0s.",
                ),
            ),
        },
    ),
    Case(
        alert=RELEASE,
        title="one in a hundred is slow",
        series=_releases(100, 1),
        moments=silent("5m", "9m", "19m"),
    ),
    Case(
        alert=RELEASE,
        title="three clients in five minutes: too few to say",
        series=_releases(0, 0.15),
        moments=silent("5m", "9m", "19m"),
    ),
    Case(
        alert=RELEASE,
        title="requests that end by themselves: nobody waits for their blocks",
        series=(*_releases(0, 5, cause="finish"), engine("oldest_finishing_seconds", " ".join(["25 0"] * 40))),
        moments=silent("5m", "9m", "19m"),
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

CASES = (
    *LEAK_CASES,
    *CORRUPTION_CASES,
    *INVARIANT_CASES,
    *IDLE_CASES,
    *RELEASE_CASES,
    *_verdict("Stalled", _STUCK),
    *_verdict("Frozen", _STUCK),
)
