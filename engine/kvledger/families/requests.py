"""Families of requests and tenants: how many there are, what they wait for, how many fit, and what came of them."""

from __future__ import annotations

from kvledger.families.build import gauge
from kvledger.families.family import Family, Label, Source
from kvledger.words import RequestState, WaitCause

_LIVE = Label("state", tuple(s.word for s in RequestState if s is not RequestState.FINISHED))
_CAUSE = Label("cause", WaitCause.words())
_PERCENTILE = Label("percentile", ("50", "95", "99"))

REQUEST_GAUGES: tuple[Family, ...] = (
    gauge("requests_live", "Requests that have not finished, by state.", "", _LIVE, per_class=True),
    gauge("requests_waiting", "Waiting requests by the one cause each waits for.", "", _CAUSE, per_class=True),
    gauge("requests_never_fit", "Waiting requests that could not run even in an empty pool."),
    gauge("oldest_wait_seconds", "Age of the oldest wait still open, by cause.", "seconds", _CAUSE, per_tenant=True),
    gauge("oldest_finishing_seconds", "Age of the oldest request that ended but still holds blocks.", "seconds"),
    gauge("tenant_blocks", "Active blocks charged to a tenant, each to one.", "blocks", per_tenant=True),
    gauge(
        "tenant_quota_blocks",
        "Blocks a tenant may hold at once: its maximum, or what is not reserved for others.",
        "blocks",
        per_tenant=True,
    ),
    gauge(
        "effective_concurrency",
        "Requests of the given length percentile that fit into the KV budget less its reserve, and the tenant's quota.",
        "",
        _PERCENTILE,
        source=Source.AGENT,
        per_tenant=True,
    ),
    gauge("requests_peak_running", "Most requests running at any instant of the last 60 seconds.", source=Source.AGENT),
    gauge(
        "length_tokens",
        "Length of ended requests at the given percentile, prompt and output, all tenants together.",
        "tokens",
        _PERCENTILE,
        source=Source.AGENT,
    ),
    gauge(
        "maximum_concurrency",
        "Requests of the given length percentile, all tenants together, that fit at once.",
        "",
        _PERCENTILE,
        source=Source.AGENT,
    ),
)

SCORECARD: tuple[Family, ...] = (
    gauge(
        "scorecard_rejection_ratio",
        "Share of requests that were refused, of those refused or ended, since the counters began.",
        "ratio",
        source=Source.AGENT,
    ),
    gauge(
        "scorecard_ttft_p95_seconds",
        "P95 of the time to first token since the counters began, interpolated where its bucket and the sum allow.",
        "seconds",
        source=Source.AGENT,
    ),
    gauge(
        "scorecard_cost_per_request",
        "Cost per request that ended, since the counters began, in the currency of the price.",
        source=Source.AGENT,
    ),
)
