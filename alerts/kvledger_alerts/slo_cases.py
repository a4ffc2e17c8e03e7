"""The promtool tests of the burn rates: each pair of windows, and what must not wake anybody."""

from __future__ import annotations

from kvledger_alerts.cases import ENGINE, WHO, Case, Firing, Series, engine, growing, quiet, silent, steady

TTFT, AVAILABILITY = "KvledgerTtftSloBurn", "KvledgerAvailabilitySloBurn"
CLASS = {"class": "default"}
MINUTE, SLOW = 60, 300
"""Seconds between samples: an hour or a day, told every fifteen seconds, would take promtool minutes."""
HOUR, DAY = 60, 288
"""Samples of an hour at the first of these, and of a day at the second."""


def _first_tokens(every: str, in_time: str) -> tuple[Series, ...]:
    return (
        engine("time_to_first_token_seconds_count", every, **CLASS),
        engine("time_to_first_token_seconds_bucket", in_time, le="2.5", **CLASS),
    )


def _burns(said: str, percent: str, limits: dict[str, str], *windows: str) -> tuple[Firing, ...]:
    factors = {"1h": "14.4", "6h": "6", "24h": "3", "72h": "1"}
    return tuple(
        Firing(
            labels={**ENGINE, "severity": "critical" if window in ("1h", "6h") else "warning", "window": window},
            description=f"Engine {WHO}: {percent} {said} in the last {window}. At {limits[window]} the budget is "
            f"used up {factors[window]} times as fast as allowed.",
        )
        for window in windows
    )


def _late(percent: str, *windows: str) -> tuple[Firing, ...]:
    limits = {"1h": "0.72", "6h": "0.3", "24h": "0.15", "72h": "0.05"}
    return _burns("of the first tokens came later than 2.5 s", percent, limits, *windows)


def _failed(percent: str, *windows: str) -> tuple[Firing, ...]:
    limits = {"1h": "0.0144", "6h": "0.006", "24h": "0.003", "72h": "0.001"}
    said = "of the requests were refused for want of room or ended by the engine"
    return _burns(said, percent, limits, *windows)


TTFT_CASES = (
    Case(
        alert=TTFT,
        title="four first tokens in five are late: within minutes",
        series=_first_tokens(growing(10, 2 * HOUR), growing(2, 2 * HOUR)),
        moments={**silent("2m"), "10m": _late("80%", "1h"), "60m": _late("80%", "1h", "6h")},
        interval_seconds=MINUTE,
    ),
    Case(
        alert=TTFT,
        title="a peak that is over: the short window is good again",
        series=_first_tokens(growing(10, 2 * HOUR), f"{growing(0, 16)} {growing(10, 2 * HOUR - 16, start=10)}"),
        moments={"14m": _late("100%", "1h"), "20m": _late("75%", "6h"), **silent("55m", "110m")},
        interval_seconds=MINUTE,
    ),
    *quiet(
        TTFT,
        "10m 30m 59m",
        {
            "every tenth first token is late: nobody is woken": _first_tokens(growing(10, HOUR), growing(9, HOUR)),
            "a night with a handful of slow requests": _first_tokens(growing(0.1, HOUR), growing(0, HOUR)),
        },
        interval_seconds=MINUTE,
    ),
    *quiet(
        TTFT,
        "10m 59m",
        {
            "idle: nothing over nothing": _first_tokens(steady(7, HOUR), steady(7, HOUR)),
        },
        interval_seconds=MINUTE,
    ),
    Case(
        alert=TTFT,
        title="every tenth first token is late for three days: two budgets a month, a ticket",
        series=_first_tokens(growing(100, 4 * DAY), growing(90, 4 * DAY)),
        moments={**silent("1h", "3h"), "20h": _late("10%", "72h"), "80h": _late("10%", "72h")},
        interval_seconds=SLOW,
    ),
    Case(
        alert=TTFT,
        title="a quarter of the first tokens is late: a ticket within the hour, the budget lasts for days",
        series=_first_tokens(growing(100, 2 * DAY), growing(75, 2 * DAY)),
        moments={**silent("1h"), "4h": _late("25%", "24h", "72h"), "30h": _late("25%", "24h", "72h")},
        interval_seconds=SLOW,
    ),
)


def _requests(stopped: str, failed: str, refused: str, cancelled: str = steady(0, HOUR)) -> tuple[Series, ...]:
    ends = (("stop", stopped), ("engine_error", failed), ("cancelled", cancelled))
    return (
        *(engine("requests_total", values, finish_reason=reason, tenant="acme") for reason, values in ends),
        engine("rejections_total", refused, reason="queue_full"),
        engine("rejections_total", growing(5, HOUR), reason="context_too_long"),
    )


AVAILABILITY_CASES = (
    Case(
        alert=AVAILABILITY,
        title="one request in four is refused, or ended by the engine",
        series=_requests(growing(6, HOUR), growing(1, HOUR), growing(1, HOUR)),
        moments={**silent("2m"), "10m": _failed("25%", "1h"), "59m": _failed("25%", "1h", "6h")},
        interval_seconds=MINUTE,
    ),
    *quiet(
        AVAILABILITY,
        "10m 30m 59m",
        {
            "clients that cancel, and clients that ask for too much: that is not the service's failure": _requests(
                growing(6, HOUR), steady(0, HOUR), steady(0, HOUR), growing(20, HOUR)
            ),
            "one error in a quiet night": _requests(
                growing(0.1, HOUR), f"{steady(0, 20)} {steady(1, HOUR - 20)}", steady(0, HOUR)
            ),
        },
        interval_seconds=MINUTE,
    ),
    *quiet(
        AVAILABILITY,
        "10m 59m",
        {
            "an engine that does not say whom it refuses: its availability is not known": _requests(
                growing(6, HOUR), growing(2, HOUR), ""
            )[:3],
        },
        interval_seconds=MINUTE,
    ),
)

LONG_AVAILABILITY_CASES = (
    Case(
        alert=AVAILABILITY,
        title="one request in two hundred fails, for days: tickets, and nobody is woken",
        series=_requests(growing(995, 2 * DAY), growing(5, 2 * DAY), steady(0, 2 * DAY), steady(0, 2 * DAY)),
        moments={**silent("1h"), "30h": _failed("0.5%", "24h", "72h")},
        interval_seconds=SLOW,
    ),
)

CASES = (*TTFT_CASES, *AVAILABILITY_CASES, *LONG_AVAILABILITY_CASES)
