"""The metric catalogue: every exported family once, as one data table.

Owns names, kinds, units, labels, help texts and histogram buckets. Layout, exporters, boards, alerts and docs are
checked against it; it never holds a value and never does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from types import MappingProxyType

from kvledger.words import (
    BlockState,
    CancelCause,
    FindingKind,
    FinishReason,
    PinKind,
    PreemptedFate,
    PreemptionMode,
    RejectionReason,
    ReleaseCause,
    RequestClass,
    RequestState,
    StepPhase,
    TokenKind,
    Verdict,
    WaitCause,
)

PREFIX = "kvledger_"
OTHER_TENANT = "other"
COMMON_LABELS = ("engine", "model", "rank")


class Kind(StrEnum):
    """The exposition type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """What one series describes. AGENT families carry none of the common labels."""

    ENGINE = "engine"
    POOL = "pool"
    GROUP = "group"
    AGENT = "agent"


class Source(StrEnum):
    """Where a value is kept: LEDGER by the engine, READER computed from one snapshot, AGENT known to the agent only."""

    LEDGER = "ledger"
    READER = "reader"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Label:
    """One label of a family: its name and its closed set of values, or None where the set is open."""

    name: str
    values: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family.

    `name` has no prefix, and no unit where the family is a histogram of seconds. `unit` is what a value counts in; an
    exporter may state it as OpenMetrics UNIT only where the exposed name ends in it. `buckets` are upper bounds in
    `unit`, strictly rising, without +Inf.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    scope: Scope
    source: Source
    labels: tuple[Label, ...] = ()
    per_tenant: bool = False
    per_class: bool = False
    buckets: tuple[float, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name on `/metrics`, in rules and on boards; a histogram's series add `_bucket`, `_sum`, `_count`."""
        timed = self.kind is Kind.HISTOGRAM and self.unit == "seconds" and not self.name.endswith("_seconds")
        return PREFIX + self.name + ("_seconds" if timed else "")

    @property
    def label_names(self) -> tuple[str, ...]:
        """All label names in exposition order: common, pool or group, own, tenant, class."""
        common = () if self.scope is Scope.AGENT else COMMON_LABELS
        scoped = (self.scope.value,) if self.scope in (Scope.POOL, Scope.GROUP) else ()
        own = tuple(label.name for label in self.labels)
        return common + scoped + own + ("tenant",) * self.per_tenant + ("class",) * self.per_class


# Waits span five decades: a healthy engine's `step` wait is milliseconds, a queue timeout minutes.
WAIT_BUCKETS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
TOKEN_GAP_BUCKETS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
ALLOCATION_BUCKETS = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.03, 0.1)
RELEASE_BUCKETS = (1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0, 60.0)
LIFETIME_BUCKETS = (1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
STEP_BUCKETS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BLOCK_BUCKETS = tuple(float(1 << power) for power in range(17))
TOKEN_BUCKETS = tuple(float(1 << power) for power in range(21))

_STATE = Label("state", BlockState.words())
_LIVE = Label("state", tuple(s.word for s in RequestState if s is not RequestState.FINISHED))
_PIN = Label("kind", tuple(k.word for k in PinKind if k is not PinKind.NONE))
_CAUSE = Label("cause", WaitCause.words())
_FINISH = Label("finish_reason", FinishReason.words())
_PART = Label("part", (*(f"wait_{word}" for word in WaitCause.words()), "prefill", "decode", "other"))
_PERCENTILE = Label("percentile", ("50", "95", "99"))
_SOURCE = Label("source", None)


def _gauge(
    name: str,
    help: str,
    unit: str = "",
    *labels: Label,
    scope: Scope = Scope.ENGINE,
    source: Source = Source.READER,
    per_tenant: bool = False,
    per_class: bool = False,
) -> Family:
    """A gauge row; computed from a snapshot unless `source` says otherwise."""
    return Family(
        name=name,
        kind=Kind.GAUGE,
        unit=unit,
        help=help,
        scope=scope,
        source=source,
        labels=labels,
        per_tenant=per_tenant,
        per_class=per_class,
    )


def _pool(name: str, help: str, unit: str, *labels: Label, source: Source = Source.READER) -> Family:
    """A gauge of one pool."""
    return _gauge(name, help, unit, *labels, scope=Scope.POOL, source=source)


def _group(name: str, help: str, unit: str) -> Family:
    """A gauge of one cache group."""
    return _gauge(name, help, unit, scope=Scope.GROUP)


def _histogram(
    name: str, help: str, buckets: tuple[float, ...], *labels: Label, unit: str = "seconds", per_class: bool = False
) -> Family:
    """A histogram the engine keeps in its ledger."""
    return Family(
        name=name,
        kind=Kind.HISTOGRAM,
        unit=unit,
        help=help,
        scope=Scope.ENGINE,
        source=Source.LEDGER,
        labels=labels,
        per_class=per_class,
        buckets=buckets,
    )


def _counter(name: str, help: str, unit: str = "", *labels: Label, per_tenant: bool = False) -> Family:
    """A counter the engine keeps in its ledger; it never goes back, whatever restarts."""
    return Family(
        name=name,
        kind=Kind.COUNTER,
        unit=unit,
        help=help,
        scope=Scope.ENGINE,
        source=Source.LEDGER,
        labels=labels,
        per_tenant=per_tenant,
    )


def _agent(name: str, help: str, unit: str = "", *labels: Label, kind: Kind = Kind.GAUGE) -> Family:
    """A row about the agent itself; these may restart with the agent."""
    return Family(name=name, kind=kind, unit=unit, help=help, scope=Scope.AGENT, source=Source.AGENT, labels=labels)


_POOL_GAUGES = (
    _pool("pool_blocks", "Blocks by state; the three add up to the capacity.", "blocks", _STATE),
    _pool("pool_capacity_blocks", "Blocks the pool can hand out, the null block not counted.", "blocks"),
    _pool("pool_pinned_blocks", "Blocks referenced by a declared holder that is not a live table.", "blocks", _PIN),
    _pool(
        "pool_leaked_blocks",
        "Active blocks whose references exceed live tables and pins beyond the grace.",
        "blocks",
        source=Source.AGENT,
    ),
    _pool("pool_committed_blocks", "Blocks admitted requests may still need up to max_tokens.", "blocks"),
    _pool("pool_peak_active_blocks", "Most active blocks at any instant of the last 60 seconds.", "blocks"),
    _pool("pool_longest_free_run_blocks", "Longest run of adjacent free block ids.", "blocks"),
    _pool("pool_budget_bytes", "Memory that the KV cache was planned in: its blocks, and the reserve.", "bytes"),
    _pool("pool_reserve_bytes", "Memory kept for weights, activations, buffers and allocator metadata.", "bytes"),
    _pool("pool_alert_watermark_ratio", "Share of active blocks at which an operator is told.", "ratio"),
    _pool("pool_admission_watermark_blocks", "Free blocks the engine keeps back when it admits requests.", "blocks"),
    _pool(
        "pool_seconds_to_exhaustion",
        "Headroom divided by the last minute's net growth; absent when not growing.",
        "seconds",
        source=Source.AGENT,
    ),
)

_GROUP_GAUGES = (
    _group("group_logical_blocks", "Sum of block-table lengths over live requests.", "blocks"),
    _group("group_active_blocks", "Blocks of this group with a reference count of at least one.", "blocks"),
    _group("group_shared_blocks", "Blocks in two or more live tables.", "blocks"),
    _group("group_tail_waste_slots", "Allocated slots of live tables that hold no token.", "slots"),
    _group("group_block_size_tokens", "Token slots per block.", "tokens"),
    _group("group_block_bytes", "Bytes of one block over all layers of the group.", "bytes"),
    _group("group_bytes_per_token", "Bytes one token takes over all layers of the group.", "bytes_per_token"),
)

_REQUEST_GAUGES = (
    _gauge("requests_live", "Requests that have not finished, by state.", "", _LIVE, per_class=True),
    _gauge("requests_waiting", "Waiting requests by the one cause each waits for.", "", _CAUSE, per_class=True),
    _gauge("requests_never_fit", "Waiting requests that could not run even in an empty pool."),
    _gauge("oldest_wait_seconds", "Age of the oldest wait still open, by cause.", "seconds", _CAUSE, per_tenant=True),
    _gauge("oldest_finishing_seconds", "Age of the oldest request that ended but still holds blocks.", "seconds"),
    _gauge("tenant_blocks", "Active blocks charged to a tenant, each to one.", "blocks", per_tenant=True),
    _gauge(
        "tenant_quota_blocks",
        "Blocks a tenant may hold at once: its maximum, or what is not reserved for others.",
        "blocks",
        per_tenant=True,
    ),
    _gauge(
        "effective_concurrency",
        "Requests of the given length percentile that fit into the KV budget less its reserve, and the tenant's quota.",
        "",
        _PERCENTILE,
        source=Source.AGENT,
        per_tenant=True,
    ),
    _gauge(
        "requests_peak_running", "Most requests running at any instant of the last 60 seconds.", source=Source.AGENT
    ),
    _gauge(
        "length_tokens",
        "Length of ended requests at the given percentile, prompt and output, all tenants together.",
        "tokens",
        _PERCENTILE,
        source=Source.AGENT,
    ),
    _gauge(
        "maximum_concurrency",
        "Requests of the given length percentile, all tenants together, that fit at once.",
        "",
        _PERCENTILE,
        source=Source.AGENT,
    ),
)

_SCORECARD = (
    _gauge(
        "scorecard_rejection_ratio",
        "Share of requests that were refused, of those refused or ended, since the counters began.",
        "ratio",
        source=Source.AGENT,
    ),
    _gauge(
        "scorecard_ttft_p95_seconds",
        "P95 of the time to first token since the counters began, at most the last bucket's bound.",
        "seconds",
        source=Source.AGENT,
    ),
    _gauge(
        "scorecard_cost_per_request",
        "Cost per request that ended, since the counters began, in the currency of the price.",
        source=Source.AGENT,
    ),
)

_HISTOGRAMS = (
    _histogram(
        "wait", "Time spent waiting for one cause, once per request and cause.", WAIT_BUCKETS, _CAUSE, per_class=True
    ),
    _histogram("time_to_first_block", "Arrival to first block held.", WAIT_BUCKETS, per_class=True),
    _histogram("time_to_first_token", "Arrival to first token.", WAIT_BUCKETS, per_class=True),
    _histogram("inter_token_latency", "Time between two tokens of one request.", TOKEN_GAP_BUCKETS, per_class=True),
    _histogram("request_duration", "Arrival to end of a request.", DURATION_BUCKETS, _FINISH),
    _histogram("allocation", "Time inside the allocator for one allocation.", ALLOCATION_BUCKETS),
    _histogram(
        "release",
        "End of a request to its last block given back.",
        RELEASE_BUCKETS,
        Label("cause", ReleaseCause.words()),
    ),
    _histogram(
        "block_reference_lifetime",
        "Time one reference to a block was held.",
        LIFETIME_BUCKETS,
        Label("shared", ("false", "true")),
    ),
    _histogram("step", "Time of one engine step, by phase.", STEP_BUCKETS, Label("phase", StepPhase.words())),
    _histogram("request_peak_blocks", "Most blocks a request held at once.", BLOCK_BUCKETS, unit="blocks"),
    _histogram(
        "request_tokens",
        "Tokens of a request, by kind.",
        TOKEN_BUCKETS,
        Label("kind", TokenKind.words()),
        unit="tokens",
    ),
)

_COUNTERS = (
    _counter("requests_total", "Accepted requests that ended, by reason.", "", _FINISH, per_tenant=True),
    _counter(
        "rejections_total",
        "Requests refused before any block was held, by reason.",
        "",
        Label("reason", RejectionReason.words()),
    ),
    _counter("tenant_rejections_total", "Requests refused before any block was held, by tenant.", per_tenant=True),
    _counter("cancellations_total", "Requests cancelled, by who did it.", "", Label("cause", CancelCause.words())),
    _counter(
        "preemptions_total",
        "Requests preempted, by how their content comes back.",
        "",
        Label("mode", PreemptionMode.words()),
    ),
    _counter(
        "preempted_blocks_total",
        "Blocks of preempted requests, by what became of them.",
        "blocks",
        Label("fate", PreemptedFate.words()),
    ),
    _counter("recomputed_tokens_total", "Tokens computed again after a preemption.", "tokens"),
    _counter("prefix_queried_tokens_total", "Tokens looked up in the prefix index.", "tokens"),
    _counter("prefix_hit_tokens_total", "Tokens found in the prefix index and not computed again.", "tokens"),
    _counter("evictions_total", "Cached blocks that lost their content to a new allocation."),
    _counter("cow_copies_total", "Blocks copied because a shared block was about to be written."),
    _counter("cow_bytes_total", "Bytes copied because a shared block was about to be written.", "bytes"),
    _counter(
        "sharing_overhead_seconds_total", "Time spent on prefix lookups, reference counts and copy-on-write.", "seconds"
    ),
    _counter("prompt_tokens_total", "Prompt tokens of accepted requests.", "tokens"),
    _counter("generation_tokens_total", "Tokens generated.", "tokens"),
    _counter(
        "block_seconds_total",
        "Integral of blocks held over time, a shared block's second split among its holders.",
        "seconds",
        per_tenant=True,
    ),
    _counter("cost_total", "Cost of block-seconds at the configured price.", per_tenant=True),
    _counter("allocation_failures_total", "Allocations the pool could not serve."),
    _counter("engine_steps_total", "Steps the engine has completed."),
    _counter("engine_restarts_total", "Engine starts that inherited a predecessor's ledger."),
)

_FINDINGS = (
    _gauge(
        "findings",
        "Open findings by what the ledger shows.",
        "",
        Label("kind", FindingKind.words()),
        source=Source.AGENT,
    ),
    _gauge(
        "invariant_violations", "Lasting violations by invariant.", "", Label("invariant", None), source=Source.AGENT
    ),
    _gauge(
        "verdict",
        "One for the current verdict, zero for the others.",
        "",
        Label("verdict", Verdict.words()),
        source=Source.AGENT,
    ),
    _gauge("verdict_share", "Parts of request time in the window, summing to one.", "", _PART, source=Source.AGENT),
)

_LIVENESS = (
    _gauge("engine_up", "One while the engine holds its ledger's lock, else zero."),
    _gauge("engine_closed", "One after a clean stop of the engine, zero while it lives and after any other end."),
    _gauge("engine_heartbeat_age_seconds", "Time since the engine's last heartbeat.", "seconds"),
    _gauge("engine_idle", "One while the engine says it has no work, else zero."),
    _gauge("capability", "One if the source reports this signal, else zero.", "", Label("signal", None)),
)

_AGENT_SELF = (
    _agent(
        "build_info",
        "Always one; the agent's versions are its labels.",
        "",
        Label("version", None),
        Label("python", None),
    ),
    _agent("agent_source_success", "One if the last sample of a source succeeded, else zero.", "", _SOURCE),
    _agent("agent_source_duration_seconds", "Time the last sample of a source took.", "seconds", _SOURCE),
    _agent("agent_source_age_seconds", "Age of a source's last good sample at this scrape.", "seconds", _SOURCE),
    _agent(
        "agent_events_lost_total", "Ring records overwritten before they were read.", "", _SOURCE, kind=Kind.COUNTER
    ),
    _agent(
        "agent_reads_retried_total", "Reads repeated because the writer was active.", "", _SOURCE, kind=Kind.COUNTER
    ),
    _agent(
        "agent_ledger_overflows_total",
        "Records for which a source's ledger had no room, ever: requests without a slot, pins, table entries.",
        "",
        _SOURCE,
        kind=Kind.COUNTER,
    ),
    _agent("agent_cpu_seconds_total", "Processor time the agent has used.", "seconds", kind=Kind.COUNTER),
    _agent("agent_memory_bytes", "Resident memory of the agent.", "bytes"),
    _agent("agent_otlp_exports_total", "Exports over OTLP that were tried.", kind=Kind.COUNTER),
    _agent("agent_otlp_failures_total", "Exports over OTLP that the endpoint did not take.", kind=Kind.COUNTER),
)

FAMILIES: tuple[Family, ...] = (
    _POOL_GAUGES
    + _GROUP_GAUGES
    + _REQUEST_GAUGES
    + _SCORECARD
    + _HISTOGRAMS
    + _COUNTERS
    + _FINDINGS
    + _LIVENESS
    + _AGENT_SELF
)
BY_NAME: Mapping[str, Family] = MappingProxyType({family.name: family for family in FAMILIES})


def stored_counters() -> tuple[Family, ...]:
    """The counters a ledger stores, in catalogue order."""
    return tuple(f for f in FAMILIES if f.source is Source.LEDGER and f.kind is Kind.COUNTER)


def stored_histograms() -> tuple[Family, ...]:
    """The histograms a ledger stores, in catalogue order."""
    return tuple(f for f in FAMILIES if f.source is Source.LEDGER and f.kind is Kind.HISTOGRAM)


def series_labels(family: Family) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Every combination of a family's closed label values, the class last where it is per class.

    Open labels, tenants and the common labels are not in it. A family without closed labels has one, empty,
    combination.
    """
    axes = [[(label.name, value) for value in label.values] for label in family.labels if label.values is not None]
    if family.per_class:
        axes.append([("class", word) for word in RequestClass.words()])
    return tuple(product(*axes))
