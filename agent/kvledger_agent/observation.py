"""One engine, seen once, in the project's own words. Engine-neutral: whatever a source does not report is None.

Owns names and shapes; computes nothing and reads nothing. Everything downstream (findings, verdict, exporters, API,
commands) sees these classes only, so that a scraped engine and a ledger are the same to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import NS_PER_SECOND
from kvledger.reasons import BY_REASON
from kvledger.words import LEDGER_KINDS, Action, FindingKind, Reason, Verdict
from kvledger_agent.finding import Finding, Note
from kvledger_agent.sharing_account import SharingView
from kvledger_agent.verdict.request_time import RequestTime

Labels = tuple[str, ...]
"""Label values in the order of `Family.labels`, then tenant, then class, as far as the family has them."""
Series = Mapping[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which engine core this is; `epoch` numbers its starts, `started_wall_ns` is when the present one began."""

    engine: str
    rank: int
    model: str
    pool: str
    epoch: int | None = None
    started_wall_ns: int | None = None

    @property
    def key(self) -> str:
        """`engine:rank`, safe in a URL and unique within one directory of ledgers."""
        return f"{self.engine}:{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """When a recording was made, by the wall clock, and the status that the ledger had then."""

    wall_ns: int
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """Whether the engine lives and works. From `heartbeat_monotonic_ns` an exporter computes the age at its moment.

    Of a recording it is not known whether the engine still lives; the ages are those of the instant `recorded`.
    """

    status: str
    up: bool | None
    idle: bool | None
    heartbeat_age_seconds: float | None
    heartbeat_monotonic_ns: int | None
    last_served: bool = False
    recorded: Recorded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The source's own time: last publication, now, and the wall clock that belongs to the publication."""

    published_ns: int
    now_ns: int
    wall_ns: int
    virtual: bool

    def wall_seconds(self, clock_ns: int) -> float | None:
        """Wall-clock seconds of an instant of the ledger clock; None for a virtual clock, which has no wall time."""
        return None if self.virtual else (self.wall_ns + clock_ns - self.published_ns) / NS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool, in blocks unless a name says otherwise.

    `reserve_parts_bytes` are the reserve's parts by name, None where the engine does not know one.
    A scraped engine may not tell free blocks from those kept for reuse: `available_blocks` are both. Its `usage_ratio`
    counts what is kept for reuse as used where `usage_includes_evictable` says so. `kv_eviction` says whether sequences
    forget what their model would see (`none`, `sliding`, `sink-window`), `allocation` how blocks are placed.
    """

    capacity_blocks: int | None
    free_blocks: int | None = None
    cached_blocks: int | None = None
    active_blocks: int | None = None
    pinned_blocks: Mapping[str, int] | None = None
    committed_blocks: int | None = None
    peak_active_blocks: int | None = None
    longest_free_run_blocks: int | None = None
    budget_bytes: int | None = None
    reserve_bytes: int | None = None
    reserve_parts_bytes: Mapping[str, int | None] | None = None
    alert_watermark_ratio: float | None = None
    admission_watermark_blocks: int | None = None
    growth_known: bool = False
    seconds_to_exhaustion: float | None = None
    available_blocks: int | None = None
    usage_ratio: float | None = None
    usage_includes_evictable: bool | None = None
    kv_eviction: str | None = None
    allocation: str | None = None

    @property
    def headroom_blocks(self) -> int | None:
        """free + cached − committed; below zero when admitted requests may need more than there is."""
        if self.free_blocks is None or self.cached_blocks is None or self.committed_blocks is None:
            return None
        return self.free_blocks + self.cached_blocks - self.committed_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One cache group of a pool. `window_tokens` 0 = it sees everything; `sink_tokens` are kept beside a window."""

    name: str
    block_size_tokens: int | None = None
    block_bytes: int | None = None
    bytes_per_token: int | None = None
    logical_blocks: int | None = None
    active_blocks: int | None = None
    shared_blocks: int | None = None
    tail_waste_slots: int | None = None
    window_tokens: int | None = None
    sink_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsView:
    """Requests in numbers, keyed by label values: state or cause with class, cause or percentile with tenant.

    `peak_running` is the most that ran at any instant of the last 60 s; `length_tokens` and `maximum_concurrency` are
    those of all tenants together, by percentile. `waiting_by_reason` is in a scraped engine's own words, which are no
    causes: it may call many things one.
    """

    live: Series | None = None
    waiting: Series | None = None
    never_fit: int | None = None
    oldest_wait_seconds: Series | None = None
    oldest_finishing_seconds: float | None = None
    tenant_blocks: Series | None = None
    tenant_quota_blocks: Series | None = None
    effective_concurrency: Series | None = None
    peak_running: int | None = None
    length_tokens: Series | None = None
    maximum_concurrency: Series | None = None
    waiting_by_reason: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramView:
    """One histogram series: upper bounds, counts per bucket (not cumulative, the last above every bound), sum."""

    bounds: tuple[float, ...]
    buckets: NDArray[np.float64]
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters and histograms by family; a family the source does not keep is missing."""

    counters: Mapping[str, Series] = field(default_factory=dict)
    histograms: Mapping[str, Mapping[Labels, HistogramView]] = field(default_factory=dict)


LEDGER, SCRAPED = "ledger", "scraped"
"""How an engine is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """The verdict, why, the sentence that supports it, and the one action it asks for.

    `missing` names signals that would have decided and are not known. `request_time` is where the time of requests went
    in the window, None where requests are not seen one by one.
    """

    verdict: Verdict
    action: Action
    evidence: str
    reason: Reason
    missing: tuple[str, ...] = ()
    request_time: RequestTime | None = None
    window_seconds: float | None = None

    @property
    def to_do(self) -> str:
        """What somebody on call does now, in a sentence."""
        return BY_REASON[self.reason].to_do


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One engine's sample. `violations` maps an invariant to how far it is lastingly off (0: it holds).

    `undecided` counts contradictions that have not lasted for the grace of `grace_seconds` yet; most often they never
    do. `judged` are the kinds of finding that this source can show at all; of others nothing is known. `source` says
    how the engine is seen.
    """

    identity: Identity
    liveness: Liveness
    clock: Clock | None = None
    published_seq: int | None = None
    pool: PoolView | None = None
    groups: tuple[GroupView, ...] = ()
    requests: RequestsView | None = None
    totals: Totals = field(default_factory=Totals)
    findings: tuple[Finding, ...] | None = None
    violations: Mapping[str, float] | None = None
    undecided: int | None = None
    grace_seconds: float | None = None
    verdict: VerdictView | None = None
    sharing: SharingView | None = None
    notes: tuple[Note, ...] | None = None
    judged: tuple[FindingKind, ...] = LEDGER_KINDS
    source: str = LEDGER

    @property
    def has_findings(self) -> bool:
        """Whether anything is lastingly wrong: a finding, or a count that does not add up."""
        return bool(self.findings) or any((self.violations or {}).values())

    @property
    def in_doubt(self) -> bool:
        """Whether a live engine is under a suspicion that is neither a finding nor cleared yet."""
        return bool(self.undecided) and bool(self.liveness.up)

    @property
    def leaked_blocks(self) -> int | None:
        """Blocks in open `excess_reference` findings; None where nothing audits the blocks."""
        if self.findings is None or FindingKind.EXCESS_REFERENCE not in self.judged:
            return None
        return sum(f.block_count or 0 for f in self.findings if f.kind is FindingKind.EXCESS_REFERENCE)
