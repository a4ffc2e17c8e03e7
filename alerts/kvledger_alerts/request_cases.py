"""The promtool tests of what requests go through, and of what only looks like trouble."""

from __future__ import annotations

from kvledger_alerts.cases import Case, Series, engine, growing, quiet, silent, steady, warning
from kvledger_alerts.causes import TENANT, WAIT

OLDEST, NEVER_FIT, THRASH = "KvledgerOldestWaiter", "KvledgerNeverFit", "KvledgerPreemptionThrash"
COLLAPSE = "KvledgerPrefixHitCollapse"
INTERACTIVE = {"class": "interactive"}


def _waits(short: float, long: float, cause: str) -> tuple[Series, ...]:
    """Waits ended in each 15 s: those within 1 s, and those within 10 s."""
    every = short + long
    labels = {**INTERACTIVE, "cause": cause}
    return (
        engine("wait_seconds_bucket", growing(short), le="1.0", **labels),
        engine("wait_seconds_bucket", growing(short), le="5.0", **labels),
        engine("wait_seconds_bucket", growing(every), le="10.0", **labels),
        engine("wait_seconds_bucket", growing(every), le="+Inf", **labels),
        engine("wait_seconds_count", growing(every), **labels),
    )


WAIT_CASES = (
    Case(
        alert=WAIT,
        title="one wait in five takes longer than five seconds: after five minutes, by its cause",
        series=(*_waits(4, 1, "batch_slots"), *_waits(50, 0, "pool")),
        moments={
            **silent("4m"),
            "12m": (
                warning(
                    ": one wait for batch_slots in twenty takes more than 8.75s; the target is 5 s.",
                    cause="batch_slots",
                ),
            ),
        },
    ),
    *quiet(
        WAIT,
        "6m 12m 19m",
        {
            "one long wait in a quiet night": _waits(0, 0.2, "pool"),
            "an engine that was paused on purpose": _waits(0, 20, "paused"),
            "many short waits: a healthy engine's": _waits(100, 1, "step"),
        },
    ),
)


def _oldest(values: str, cause: str) -> Series:
    return engine("oldest_wait_seconds", values, cause=cause, tenant="acme")


OLDEST_CASES = (
    Case(
        alert=OLDEST,
        title="a request that is not let in: it is in no histogram, since its wait has not ended",
        series=(_oldest(growing(15), "batch_slots"),),
        moments={
            **silent("1m30s"),
            "10m": (
                warning(
                    ": a request of tenant acme has waited for batch_slots for 9m 0s, and waits on.",
                    cause="batch_slots",
                    tenant="acme",
                ),
            ),
        },
    ),
    *quiet(
        OLDEST,
        "2m 5m 19m",
        {
            "a queue that moves: its oldest request is another one in each sample": (
                _oldest(" ".join(["70 5 40 20"] * 20), "pool"),
            ),
            "an engine that was paused on purpose": (_oldest(growing(15), "paused"),),
        },
    ),
)

NEVER_FIT_CASES = (
    Case(
        alert=NEVER_FIT,
        title="a request that no empty pool could hold",
        series=(engine("requests_never_fit", f"{steady(0, 4)} {steady(2, 60)}"),),
        moments={
            **silent("2m"),
            "5m": (warning(": 2 waiting requests need more blocks than the whole pool has."),),
        },
    ),
    *quiet(
        NEVER_FIT,
        "2m 5m 19m",
        {
            "long requests that fit and wait for their turn": (engine("requests_never_fit", steady(0)),),
        },
    ),
)


def _preempting(recomputed: float, generated: float, preempted: float) -> tuple[Series, ...]:
    return (
        engine("recomputed_tokens_total", growing(recomputed)),
        engine("generation_tokens_total", growing(generated)),
        engine("preemptions_total", growing(preempted), mode="recompute"),
    )


THRASH_CASES = (
    Case(
        alert=THRASH,
        title="as much is computed again as is generated",
        series=_preempting(600, 400, 1),
        moments={**silent("1m"), "10m": (warning(" computes 1.5 tokens again for each one it generates."),)},
    ),
    *quiet(
        THRASH,
        "5m 10m 19m",
        {
            "preemption now and then: a full pool goes on that way": _preempting(60, 400, 1),
            "one long request is computed again in a quiet hour": _preempting(600, 400, 0.2),
            "idle: nothing over nothing": _preempting(0, 0, 0),
        },
    ),
)


def _tenant(blocks: float, *waiting: Series) -> tuple[Series, ...]:
    return (
        engine("tenant_blocks", steady(blocks), tenant="acme"),
        engine("tenant_quota_blocks", steady(32), tenant="acme"),
        *waiting,
    )


TENANT_CASES = (
    Case(
        alert=TENANT,
        title="a tenant holds all of its quota, and a request of it waits for more",
        series=_tenant(32, _oldest(steady(20), "tenant_quota")),
        moments={
            **silent("4m45s"),
            "6m": (
                warning(
                    ": tenant acme holds 100% of its quota, and its requests wait for the rest.",
                    tenant="acme",
                ),
            ),
        },
    ),
    *quiet(
        TENANT,
        "6m 12m 19m",
        {
            "a tenant uses what it was given, and waits for nothing": _tenant(32),
            "a tenant waits for the pool, as all do": _tenant(32, _oldest(steady(20), "pool")),
            "a large request waits for its tenant's quota, of which half is free: it is another alert's": _tenant(
                16, _oldest(steady(20), "tenant_quota")
            ),
        },
    ),
)


def _cache(hits: str, looked_up: str = growing(4000, 120)) -> tuple[Series, ...]:
    return (engine("prefix_queried_tokens_total", looked_up), engine("prefix_hit_tokens_total", hits))


COLLAPSE_CASES = (
    Case(
        alert=COLLAPSE,
        title="four tokens in five were found for an hour, and now one in ten",
        series=_cache(f"{growing(3200, 60)} {growing(400, 60, start=189_200)}"),
        moments={
            **silent("60m", "64m"),
            "75m": (
                warning(
                    ": 10% of the prompt tokens looked up are found, less than half of what the last 6h had.",
                ),
            ),
        },
        interval_seconds=60,
    ),
    *quiet(
        COLLAPSE,
        "5m 60m 119m",
        {
            "a load that never shared much and shares less now": _cache(
                f"{growing(600, 60)} {growing(40, 60, start=35_440)}"
            ),
        },
        interval_seconds=60,
    ),
    *quiet(
        COLLAPSE,
        "5m 15m 60m 119m",
        {
            "a start with an empty cache, which fills": _cache(f"{growing(0, 20)} {growing(3200, 100)}"),
        },
        interval_seconds=60,
    ),
    *quiet(
        COLLAPSE,
        "60m 70m 85m 119m",
        {
            "the traffic ends: a handful of tokens says nothing about the cache": _cache(
                f"{growing(3200, 60)} {steady(188_800, 60)}",
                f"{growing(4000, 60)} {growing(40, 60, start=236_040)}",
            ),
        },
        interval_seconds=60,
    ),
)

CASES = (*WAIT_CASES, *OLDEST_CASES, *NEVER_FIT_CASES, *THRASH_CASES, *TENANT_CASES, *COLLAPSE_CASES)
