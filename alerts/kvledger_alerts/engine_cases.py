"""The promtool tests of blocks that do not come back and of content in doubt, and of what only looks like it."""

from __future__ import annotations

from kvledger_alerts.cases import (
    POOL,
    WHO,
    Case,
    Firing,
    Series,
    critical,
    engine,
    growing,
    missing,
    pool,
    quiet,
    silent,
    steady,
    warning,
)
from kvledger_alerts.causes import CORRUPTION, LEAK

INVARIANT, IDLE, RELEASE = "KvledgerInvariantBroken", "KvledgerIdleHold", "KvledgerSlowRelease"


def _leak(kind: str, count: int) -> Firing:
    return warning(f": {count} open findings of kind {kind}.", kind=kind)


def _findings(**counts: float) -> tuple[Series, ...]:
    return tuple(engine("findings", steady(count), kind=kind) for kind, count in counts.items())


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
        series=_findings(lost_block=1, pin_overdue=2, finishing_overdue=3),
        moments={"1m": (_leak("lost_block", 1), _leak("pin_overdue", 2), _leak("finishing_overdue", 3))},
    ),
    Case(
        alert=LEAK,
        title="an engine that is only scraped tells a usage that cannot be; its idle hold is the other alert",
        series=_findings(idle_hold=1, usage_out_of_range=1, waiting_without_running=1),
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
                    description=f"Engine {WHO}: 25% of pool gpu is leaked.",
                ),
            )
        },
    ),
    *quiet(
        LEAK,
        "1m 5m 15m",
        {
            "pins within their lease, and a pool full of live requests": (
                *_findings(excess_reference=0, pin_overdue=0),
                pool("pool_pinned_blocks", steady(9), kind="transfer"),
                pool("pool_leaked_blocks", steady(0)),
                pool("pool_capacity_blocks", steady(24)),
                pool("pool_blocks", steady(24), state="active"),
            ),
            "an engine of which no findings are known": (
                pool("pool_capacity_blocks", steady(24)),
                pool("pool_blocks", steady(24), state="active"),
            ),
            "content that is in doubt is no leak: that is the other alert": _findings(double_listed=1),
        },
    ),
)


CORRUPTION_CASES = (
    Case(
        alert=CORRUPTION,
        title="a block listed twice",
        series=(engine("findings", f"{steady(0, 8)} {steady(1)}", kind="double_listed"),),
        moments={
            **silent("1m45s"),
            "2m": (critical(": 1 open findings of kind double_listed.", kind="double_listed"),),
        },
    ),
    *quiet(
        CORRUPTION,
        "1m 5m 15m",
        {
            "all in order, and a leak, which is the other alert": (
                *_findings(double_listed=0, excess_reference=4),
                engine("invariant_violations", steady(3), invariant="free"),
            )
        },
    ),
)


def _off(invariant: str, by: int) -> Firing:
    return critical(f": the count of {invariant} blocks is off by {by}.", invariant=invariant)


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
    *quiet(
        INVARIANT,
        "1m 5m 15m",
        {
            "counts that hold: what is off for one publication is not reported as off": (
                engine("invariant_violations", steady(0), invariant="free"),
            )
        },
    ),
)


def _idle(blocks: int) -> Firing:
    return warning(f" is idle and holds blocks that no pin explains ({blocks}).")


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
        series=_findings(idle_hold=1),
        moments={**silent("4m"), "6m": (_idle(1),)},
    ),
    *quiet(
        IDLE,
        "6m 9m 19m",
        {
            "four blocks held, and four of them pinned by a transfer": _resting(4, 4, steady(1)),
            "idle now and then, between two requests": _resting(4, 0, " ".join(["1 1 1 0"] * 20)),
            "idle with blocks kept for reuse": _resting(0, 0, steady(1)),
            "four blocks held by an engine that does not say what is pinned": (
                *_resting(4, 0, steady(1))[:2],
                engine("engine_idle", steady(1)),
            ),
        },
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
                warning(
                    ": P95 from the end of a request (disconnect) to its last block given back: 9.1s.",
                    cause="disconnect",
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
            "6m": (warning(": the oldest request that has ended and still holds blocks: 5m 0s."),),
        },
    ),
    *quiet(
        RELEASE,
        "5m 9m 19m",
        {
            "one in a hundred is slow": _releases(100, 1),
            "three clients in five minutes: too few to say": _releases(0, 0.15),
            "requests that end by themselves: nobody waits for their blocks": (
                *_releases(0, 5, cause="finish"),
                engine("oldest_finishing_seconds", " ".join(["25 0"] * 40)),
            ),
        },
    ),
)

CASES = (*LEAK_CASES, *CORRUPTION_CASES, *INVARIANT_CASES, *IDLE_CASES, *RELEASE_CASES)
