"""A ledger's sample and audit as an `Observation`. Pure: what is seen, in the project's words, nothing kept."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.audit import Audit
from kvledger.clock import NS_PER_SECOND
from kvledger.head import Head
from kvledger.limits import Group, Limits
from kvledger.snapshot import Sample
from kvledger.status import ReadStatus
from kvledger.words import PinKind
from kvledger_agent.audit_facts import AuditFacts
from kvledger_agent.needs import blocks_dropped
from kvledger_agent.observation import (
    Clock,
    GroupView,
    Identity,
    Liveness,
    PoolView,
    Recorded,
)
from kvledger_agent.observe_requests import committed_blocks

PEAK_SECONDS = 60


_GONE = (ReadStatus.CLOSED, ReadStatus.DEAD, ReadStatus.ABANDONED)


def is_final(sample: Sample) -> bool:
    """Whether nobody writes the ledger any more, so that what it shows will not change."""
    return sample.status in (*_GONE, ReadStatus.RECORDED) or (
        sample.status is ReadStatus.LAST_GOOD and sample.writer_pid is None
    )


def is_cut_short(sample: Sample, audit: Audit) -> bool:
    """Whether the engine died inside a publication. One that went on when it was recorded completed it."""
    return sample.status_then in _GONE and audit.writing_seq != audit.published_seq


def identity_of(head: Head) -> Identity:
    """Which engine core a ledger belongs to."""
    limits = head.limits
    return Identity(
        engine=limits.engine,
        rank=limits.rank,
        model=limits.model,
        pool=limits.pool,
        epoch=head.epoch,
        started_wall_ns=None if head.virtual_clock or head.created_wall_ns <= 0 else head.created_wall_ns,
    )


def clock_of(sample: Sample) -> Clock:
    """The ledger's clock at this sample."""
    return Clock(
        published_ns=sample.clock_ns,
        now_ns=sample.now_ns,
        wall_ns=sample.stats.whole("wall_ns"),
        virtual=sample.head.virtual_clock,
    )


def liveness_of(sample: Sample) -> Liveness:
    """Whether the engine lives, None for a recording. A heartbeat without a comparable clock has no age."""
    recording = sample.head.recording
    up = None if recording else not is_final(sample)
    known = sample.heartbeat_age_seconds is not None and recording is None
    return Liveness(
        status=sample.status.value,
        up=up,
        idle=(recording is not None or bool(up)) and sample.control["idle_since_ns"] != 0,
        heartbeat_age_seconds=sample.heartbeat_age_seconds,
        heartbeat_monotonic_ns=sample.stats.whole("monotonic_ns") if known else None,
        last_served=sample.status is ReadStatus.LAST_GOOD,
        recorded=None if recording is None else Recorded(wall_ns=recording.wall_ns, status=recording.status),
    )


def pool_of(
    sample: Sample, facts: AuditFacts | None, peaks: NDArray[Any], active_growth_per_second: float | None
) -> PoolView:
    """The pool of one sample. `peaks` is the ledger's ring of per-second peaks."""
    limits = sample.head.limits
    committed = committed_blocks(sample)
    free, cached, active = (_count(sample, f"{name}_blocks") for name in ("free", "cached", "active"))
    headroom = None if free is None or cached is None else free + cached - committed
    return PoolView(
        capacity_blocks=limits.capacity_blocks,
        free_blocks=free,
        cached_blocks=cached,
        active_blocks=active,
        pinned_blocks=_pinned(sample),
        committed_blocks=committed,
        peak_active_blocks=peak_active_blocks(sample, peaks, active),
        longest_free_run_blocks=None if facts is None else facts.longest_free_run_blocks,
        budget_bytes=limits.budget_bytes or None,
        reserve_bytes=limits.reserve_bytes or None,
        reserve_parts_bytes=_reserve_parts(limits) if limits.reserve_bytes else None,
        alert_watermark_ratio=limits.alert_watermark_ratio,
        admission_watermark_blocks=limits.admission_watermark_blocks,
        growth_known=active_growth_per_second is not None,
        seconds_to_exhaustion=seconds_to_exhaustion(headroom, active_growth_per_second),
        kv_eviction=limits.kv_eviction,
        allocation=limits.allocation,
    )


def peak_active_blocks(sample: Sample, peaks: NDArray[Any], active: int | None) -> int | None:
    """The most blocks active at any instant of the last 60 s of the ledger clock, the present one included."""
    if active is None:
        return None
    first = sample.now_ns // NS_PER_SECOND - PEAK_SECONDS
    recent = peaks["active_blocks"][peaks["second"] > first]
    return max(active, int(recent.max())) if len(recent) else active


def seconds_to_exhaustion(headroom_blocks: int | None, growth_per_second: float | None) -> float | None:
    """Headroom ÷ the last minute's net growth of active blocks; None when not growing. No headroom left is 0."""
    if headroom_blocks is None or growth_per_second is None or growth_per_second <= 0:
        return None
    return max(0.0, headroom_blocks / growth_per_second)


def groups_of(sample: Sample, facts: AuditFacts | None) -> tuple[GroupView, ...]:
    """The cache groups of one sample. A group that stores no bytes has unknown byte sizes."""
    groups = sample.head.limits.groups
    return tuple(_group(sample, facts, index, group) for index, group in enumerate(groups))


def _count(sample: Sample, name: str) -> int | None:
    value = sample.stats.gauge(name)
    return None if value is None or not np.isfinite(value) else int(value)


def _reserve_parts(limits: Limits) -> dict[str, int | None]:
    return {
        "weights": limits.reserve_weights_bytes,
        "activations": limits.reserve_activations_bytes,
        "communication_buffers": limits.reserve_communication_bytes,
        "allocator_metadata": limits.reserve_allocator_bytes,
    }


def _pinned(sample: Sample) -> dict[str, int]:
    counts = {kind.word: 0 for kind in PinKind if kind is not PinKind.NONE}
    words = {int(kind): kind.word for kind in PinKind if kind is not PinKind.NONE}
    pairs = set(zip(sample.pins.kind.tolist(), sample.pins.block.tolist(), strict=True))
    for kind, count in Counter(kind for kind, _ in pairs).items():
        if kind in words:
            counts[words[kind]] = count
    return counts


def _group(sample: Sample, facts: AuditFacts | None, index: int, group: Group) -> GroupView:
    lengths = np.maximum(sample.slots.table_blocks[:, index].astype(np.int64), 0)
    slots = lengths * group.block_size_tokens
    computed = np.maximum(sample.slots.computed_tokens.astype(np.int64), 0)
    # What has left the window is in no table.
    computed -= blocks_dropped(group, computed) * group.block_size_tokens
    filled = np.minimum(computed, slots)
    alone = len(sample.head.limits.groups) == 1
    active = _count(sample, "active_blocks") if alone else None if facts is None else facts.group_active_blocks[index]
    return GroupView(
        name=group.name,
        block_size_tokens=group.block_size_tokens,
        block_bytes=group.block_bytes or None,
        bytes_per_token=group.bytes_per_token or None,
        logical_blocks=int(lengths.sum()),
        active_blocks=active,
        shared_blocks=None if facts is None else facts.group_shared_blocks[index],
        tail_waste_slots=int((slots - filled).sum()),
        window_tokens=group.window_tokens,
        sink_tokens=group.sink_tokens,
    )
