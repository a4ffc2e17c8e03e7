"""The promtool tests of the pool's alerts: full, running out, leaking, refusing; and what only looks like it."""

from __future__ import annotations

from kvledger_alerts.cases import (
    ENGINE,
    POOL,
    WHO,
    Case,
    Firing,
    Series,
    engine,
    growing,
    missing,
    pool,
    quiet,
    silent,
    steady,
    warning,
)

CAPACITY = 24
HIGH = "KvledgerPoolHighWatermark"
EXHAUSTION = "KvledgerPoolExhaustionPredicted"
REJECTIONS = "KvledgerRejections"
SHARING = "KvledgerSharedPrefixPinning"


def _filled(active: str, *, capacity: int = CAPACITY) -> tuple[Series, ...]:
    return (
        pool("pool_blocks", active, state="active"),
        pool("pool_capacity_blocks", steady(capacity)),
        pool("pool_alert_watermark_ratio", steady(0.9)),
    )


def _waiting(values: str) -> Series:
    return engine("requests_waiting", values, cause="pool", **{"class": "interactive"})


def _high(severity: str, percentage: str) -> Firing:
    return Firing(
        labels={**POOL, "severity": severity},
        description=f"Pool gpu of engine {WHO} has {percentage} of its blocks in use, and requests wait for blocks, "
        "are preempted, or are refused.",
    )


_WARNING, _CRITICAL = _high("warning", "91.67%"), _high("critical", "100%")
_WARNING_TOO = _high("warning", "100%")

HIGH_WATERMARK = (
    Case(
        alert=HIGH,
        title="above the engine's own watermark, with requests waiting for blocks: a warning, after five minutes",
        series=(*_filled(steady(22)), _waiting(steady(3))),
        moments={**silent("1m", "4m45s"), "5m": (_WARNING,), "15m": (_WARNING,)},
    ),
    Case(
        alert=HIGH,
        title="full, with requests waiting: critical as well",
        series=(*_filled(steady(24)), _waiting(steady(3))),
        moments={**silent("4m45s"), "5m": (_WARNING_TOO, _CRITICAL)},
    ),
    Case(
        alert=HIGH,
        title="full, with preemptions and nobody waiting",
        series=(*_filled(steady(24)), engine("preemptions_total", growing(1), mode="recompute")),
        moments={"10m": (_WARNING_TOO, _CRITICAL)},
    ),
    Case(
        alert=HIGH,
        title="full, with a full queue",
        series=(*_filled(steady(24)), engine("rejections_total", growing(1), reason="queue_full")),
        moments={"10m": (_WARNING_TOO, _CRITICAL)},
    ),
    *quiet(
        HIGH,
        "5m 10m 19m",
        {
            "full and unpressured: that is what a cache is for": (
                *_filled(steady(24)),
                _waiting(steady(0)),
                engine("requests_waiting", steady(5), cause="batch_slots", **{"class": "interactive"}),
                engine("preemptions_total", steady(7), mode="recompute"),
                engine("rejections_total", growing(1), reason="context_too_long"),
            ),
            "requests wait and the pool is not full: something else is short": (
                *_filled(steady(12)),
                _waiting(steady(3)),
            ),
            "an engine that does not say who waits, preempts or is refused: unknown is not pressure": _filled(
                steady(24)
            ),
        },
    ),
    Case(
        alert=HIGH,
        title="an engine without a watermark: only the critical threshold is known",
        series=(*_filled(steady(24))[:2], _waiting(steady(3))),
        moments={"10m": (_CRITICAL,)},
    ),
    *quiet(
        HIGH,
        "5m 10m 19m",
        {
            "an engine that does not say its capacity": (_filled(steady(24))[0], _waiting(steady(3))),
        },
    ),
    Case(
        alert=HIGH,
        title="one failed scrape neither clears it nor starts its time again; it clears when the pressure is over",
        series=(
            *_filled(f"{steady(22, 30)} {missing(1)} {steady(22, 49)}"),
            _waiting(f"{steady(3, 30)} {missing(1)} {steady(3, 9)} {steady(0, 40)}"),
        ),
        moments={"7m30s": (_WARNING,), "8m": (_WARNING,), "11m": (_WARNING,), **silent("12m")},
    ),
)


def _exhausted(duration: str) -> Firing:
    return Firing(
        labels={**POOL, "severity": "warning"},
        description=f"At the last minute's growth, pool gpu of engine {WHO} has no headroom left in {duration}.",
    )


def _running_out(seconds: str, committed: float) -> tuple[Series, ...]:
    return (
        *_filled(steady(15)),
        pool("pool_committed_blocks", steady(committed)),
        pool("pool_seconds_to_exhaustion", seconds),
    )


EXHAUSTION_CASES = (
    Case(
        alert=EXHAUSTION,
        title="growing, with little headroom: after two minutes",
        series=_running_out(steady(120), 4),
        moments={**silent("1m45s"), "2m": (_exhausted("2m 0s"),), "10m": (_exhausted("2m 0s"),)},
    ),
    *quiet(
        EXHAUSTION,
        "2m 10m",
        {
            "growing as fast, with half the pool as headroom: a ramp-up": _running_out(steady(120), 0),
            "little headroom, and not growing: the family has no series then": _running_out(
                f"{steady(120, 4)} stale {missing(70)}", 4
            ),
            "little headroom, growing slowly": _running_out(steady(3000), 4),
            "an engine that does not say what is committed": _running_out(steady(120), 4)[:-2]
            + _running_out(steady(120), 4)[-1:],
        },
    ),
)


def _refused(percentage: str, reason: str) -> Firing:
    return warning(f" refuses {percentage} of its requests as {reason}.", reason=reason)


def _traffic(ended: float, refused: float, reason: str = "queue_full") -> tuple[Series, ...]:
    return (
        engine("requests_total", growing(ended), finish_reason="stop", tenant="acme"),
        engine("rejections_total", growing(refused), reason=reason),
    )


REJECTION_CASES = (
    Case(
        alert=REJECTIONS,
        title="one request in four is refused",
        series=_traffic(3, 1),
        moments={**silent("1m"), "10m": (_refused("25%", "queue_full"),)},
    ),
    *quiet(
        REJECTIONS,
        "5m 10m 19m",
        {
            "the same share, of a handful of requests: no volume": _traffic(0.3, 0.1),
            "many refusals, of very many requests": _traffic(100, 1),
            "refused because the engine drains: that is a stop as planned": _traffic(3, 1, "draining"),
            "idle: nothing over nothing": _traffic(0, 0),
            "an engine that does not say what ended": _traffic(3, 1)[1:],
        },
    ),
    Case(
        alert=REJECTIONS,
        title="over: it clears",
        series=(
            _traffic(3, 1)[0],
            engine("rejections_total", f"{growing(1, 40)} {steady(39, 40)}", reason="queue_full"),
        ),
        moments={"9m45s": (_refused("25%", "queue_full"),), **silent("16m")},
    ),
)


def _shared(waiting: float, **groups: float) -> tuple[Series, ...]:
    """Shared blocks of each group: a block belongs to one of them."""
    return (
        *(engine("group_shared_blocks", steady(blocks), group=group) for group, blocks in groups.items()),
        pool("pool_capacity_blocks", steady(CAPACITY)),
        _waiting(steady(waiting)),
    )


def _pinned(percentage: str) -> Firing:
    return Firing(
        labels={**ENGINE, "severity": "warning"},
        description=f"Blocks shared by live requests are {percentage} of the pool of engine {WHO}: they come back only "
        "when the last of the requests ends.",
    )


SHARING_CASES = (
    Case(
        alert=SHARING,
        title="three quarters of the pool in shared blocks, and requests wait for blocks",
        series=_shared(3, full=18),
        moments={**silent("4m45s"), "6m": (_pinned("75%"),)},
    ),
    Case(
        alert=SHARING,
        title="a pool of two groups: it is their blocks together that hold most of it",
        series=_shared(3, full=10, sliding=5),
        moments={**silent("4m45s"), "6m": (_pinned("62.5%"),)},
    ),
    *quiet(
        SHARING,
        "5m 10m 19m",
        {
            "as much shared, and nobody suffers: it saves blocks": _shared(0, full=18),
            "requests wait, and little is shared": _shared(3, full=6),
            "two groups share much by turns, and at no time most of the pool": (
                *_shared(3)[-2:],
                engine("group_shared_blocks", " ".join(["11 0"] * 40), group="full"),
                engine("group_shared_blocks", " ".join(["0 11"] * 40), group="sliding"),
            ),
        },
    ),
)

CASES = (*HIGH_WATERMARK, *EXHAUSTION_CASES, *REJECTION_CASES, *SHARING_CASES)
