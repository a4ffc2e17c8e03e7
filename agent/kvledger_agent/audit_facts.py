"""What observations need of an audit, taken out of it before its borrowed arrays are overwritten. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.audit import Audit


@dataclass(frozen=True, slots=True)
class PrefixHold:
    """Blocks of one request's prefix that several live tables name: whose, how many, in how many tables at most."""

    serial: int
    blocks: int
    tables: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFacts:
    """Counts recounted from the block arrays. Under a busy writer they may mix two neighbouring publications.

    `pinned_only_blocks` are held by pins and by no live table. `held_blocks` is what each live request holds, a shared
    block's part for each of its tables.
    """

    published_seq: int
    longest_free_run_blocks: int
    group_active_blocks: tuple[int, ...]
    group_shared_blocks: tuple[int, ...]
    pinned_only_blocks: int
    held_blocks: NDArray[np.float64]
    largest_prefix: PrefixHold | None = None


def facts_of(audit: Audit) -> AuditFacts:
    """Take the facts out of an audit. To be called before its `stable` mask is first used, since it reads a column."""
    groups = len(audit.head.limits.groups)
    active = audit.sweep.held
    shared = audit.sweep.shared
    if groups == 1:
        by_group = [int(np.count_nonzero(active))], [int(np.count_nonzero(shared))]
    else:
        group = np.minimum(audit.column("group"), groups - 1)
        by_group = _per_group(group, active, groups), _per_group(group, shared, groups)
    return AuditFacts(
        published_seq=audit.published_seq,
        longest_free_run_blocks=longest_run(audit.sweep.free),
        group_active_blocks=tuple(by_group[0]),
        group_shared_blocks=tuple(by_group[1]),
        pinned_only_blocks=_pinned_only(audit),
        largest_prefix=_largest_prefix(audit) if bool(np.any(shared)) else None,
        held_blocks=_held(audit, any_shared=bool(np.any(shared))),
    )


def _held(audit: Audit, *, any_shared: bool) -> NDArray[np.float64]:
    """Blocks of each request of the audit. Where nothing is shared its tables' lengths say it."""
    if not any_shared:
        lengths: NDArray[np.float64] = np.maximum(audit.slots.table_blocks, 0).sum(axis=1, dtype=np.float64)
        return lengths
    named = audit.tables.blocks
    parts = np.where(named >= 0, 1.0 / np.maximum(audit.table_references[named], 1), 0.0)
    sums = np.concatenate(([0.0], np.cumsum(parts)))
    held: NDArray[np.float64] = np.diff(sums[audit.tables.offsets[:: audit.tables.groups]])
    return held


def _largest_prefix(audit: Audit) -> PrefixHold:
    """Shared blocks by the request that allocated them: the one with the most."""
    blocks = np.flatnonzero(audit.sweep.shared)
    owners, counts = np.unique(audit.column("owner")[blocks], return_counts=True)
    serial, references = owners[np.argmax(counts)], audit.table_references[blocks]
    return PrefixHold(int(serial), int(counts.max()), int(references.max()))


def _pinned_only(audit: Audit) -> int:
    pinned = np.unique(audit.pins.block)
    pinned = pinned[(pinned >= 0) & (pinned < audit.capacity_blocks)]
    return int(np.count_nonzero(audit.table_references[pinned] == 0))


def longest_run(mask: NDArray[np.bool_]) -> int:
    """Length of the longest run of adjacent true entries."""
    if not mask.any():
        return 0
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    runs = np.diff(edges, prepend=0, append=len(mask))[0 if mask[0] else 1 :: 2]
    return int(runs.max())


def _per_group(group: NDArray[np.uint8], mask: NDArray[np.bool_], groups: int) -> list[int]:
    counts: list[int] = np.bincount(group[mask], minlength=groups).tolist()
    return counts
