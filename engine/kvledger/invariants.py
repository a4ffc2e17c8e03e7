"""What a ledger itself shows to be wrong, block by block. Pure functions of an audit; they remember nothing.

A suspect is a block whose structures contradict each other in one published state. Whether it is a leak, and since
when, is the agent's to say: it alone sees time pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.audit import Audit
from kvledger.pins import pin_word
from kvledger.snapshot import Sample
from kvledger.views import I32, I64
from kvledger.words import BlockState, FindingKind, RequestState

FINISHING_LIMIT_SECONDS = 30.0
MOST_SUSPECTS = 4096
Found = tuple[FindingKind, I32, I64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One contradiction.

    `block` is -1 where a request, not a block, is meant. `stamp` is the publication that last changed the block (or
    slot): the same suspect with the same stamp has not moved. `owner` is the serial of the request that allocated the
    block, 0 if none did. `excess` counts references above (or, for a missing reference, below) what tables and pins
    explain, and elsewhere the entries at fault. `holders` are the slots whose tables name the block, `pins` the kinds
    of pin on it.
    """

    kind: FindingKind
    block: int
    stamp: int
    owner: int
    excess: int
    holders: tuple[int, ...] = ()
    pins: tuple[str, ...] = ()


def suspects(
    audit: Audit, *, finishing_limit_seconds: float = FINISHING_LIMIT_SECONDS, limit: int = MOST_SUSPECTS
) -> list[Suspect]:
    """Every contradiction among stable blocks, at most `limit` of each kind; and requests too long in `finishing`."""
    found: list[Suspect] = []
    for kind, blocks, excess in _unmoved(audit, list(_contradictions(audit))):
        found += _described(audit, kind, blocks, excess, limit)
    return found + _finishing_overdue(audit, finishing_limit_seconds)[:limit]


def _unmoved(audit: Audit, found: list[Found]) -> list[Found]:
    """What was found of blocks that have stood still: beside a busy writer most others contradict themselves."""
    stamps = audit.values("changed_seq", np.concatenate([blocks for _, blocks, _ in found]))
    still = np.split(stamps <= max(audit.published_seq, 0), np.cumsum([len(blocks) for _, blocks, _ in found])[:-1])
    return [(kind, blocks[rows], excess[rows]) for (kind, blocks, excess), rows in zip(found, still, strict=True)]


def _contradictions(audit: Audit) -> Iterator[Found]:
    yield from _references(audit)
    yield from _listings(audit)
    yield FindingKind.SHARED_WRITE, *_counted(_shared_writes(audit))
    yield FindingKind.STALE_INDEX_ENTRY, *_counted(audit.stale_index)
    yield FindingKind.PIN_OVERDUE, *_counted(audit.pins.block[audit.pins.overdue(audit.now_ns)])


def _references(audit: Audit) -> Iterator[Found]:
    """Reference counts against the tables and pins that explain them."""
    wrong, surplus = audit.sweep.wrong, audit.sweep.surplus
    yield FindingKind.EXCESS_REFERENCE, wrong[surplus > 0], surplus[surplus > 0]
    yield FindingKind.MISSING_REFERENCE, wrong[surplus < 0], -surplus[surplus < 0]


def _listings(audit: Audit) -> Iterator[Found]:
    """Every block with no reference is in the free list or the eviction order, once; no other block is in either."""
    blocks, places = audit.misplaced, audit.sweep.places(audit.misplaced).astype(np.int64)
    yield FindingKind.LOST_BLOCK, blocks[places == 0], np.ones(int(np.count_nonzero(places == 0)), np.int64)
    yield FindingKind.DOUBLE_LISTED, blocks[places > 1], places[places > 1] - 1


def _shared_writes(audit: Audit) -> I32:
    """Blocks in two or more tables into which a slot has written, or writes next, without a copy.

    The engine keeps a slot's `own_from_token` at or above the end of every block that others may hold, and lowers it to
    `computed_tokens` only once it has a block of its own there. So a block at or behind it that the computed tokens
    reach into is the slot's alone.
    """
    tables, slots = audit.tables, audit.slots
    size = np.tile([group.block_size_tokens for group in audit.head.limits.groups], len(slots)).astype(np.int64)
    own = np.repeat(np.maximum(slots.own_from_token, 0).astype(np.int64), tables.groups)
    computed = np.repeat(np.maximum(slots.computed_tokens, 0).astype(np.int64), tables.groups)
    first = own // size
    reached = np.maximum(np.minimum(-(-computed // size), tables.lengths) - first, 0)
    starts = np.cumsum(reached) - reached
    table = np.repeat(np.arange(len(reached)), reached)
    blocks = tables.entries(table, np.arange(len(table)) + (first - starts)[table])
    blocks = blocks[blocks >= 0]
    shared: I32 = blocks[audit.table_references[blocks] > 1]
    return shared


def _counted(blocks: I32) -> tuple[I32, I64]:
    unique, times = np.unique(blocks, return_counts=True)
    return unique, times.astype(np.int64)


def _described(audit: Audit, kind: FindingKind, blocks: I32, excess: I64, limit: int) -> list[Suspect]:
    if not len(blocks):
        return []
    owners = audit.values("owner", blocks)
    stamps = audit.values("changed_seq", blocks)  # last: a stamp vouches for what was read before it
    rows = np.flatnonzero(stamps <= max(audit.published_seq, 0))[:limit]
    holders = _holders(audit, blocks[rows])
    pins = _pins(audit, blocks[rows])
    return [
        Suspect(
            kind=kind,
            block=(block := int(blocks[row])),
            stamp=int(stamps[row]),
            owner=int(owners[row]),
            excess=int(excess[row]),
            holders=holders.get(block, ()),
            pins=pins.get(block, ()),
        )
        for row in rows.tolist()
    ]


def _holders(audit: Audit, blocks: I32) -> dict[int, tuple[int, ...]]:
    """Slots whose tables name any of `blocks`, by block."""
    entries = np.flatnonzero(np.isin(audit.tables.blocks, blocks))
    tables = np.searchsorted(audit.tables.offsets, entries, side="right") - 1
    slots = audit.slots.slot[tables // audit.tables.groups]
    held: dict[int, set[int]] = {}
    for block, slot in zip(audit.tables.blocks[entries].tolist(), slots.tolist(), strict=True):
        held.setdefault(block, set()).add(slot)
    return {block: tuple(sorted(of)) for block, of in held.items()}


def _pins(audit: Audit, blocks: I32) -> dict[int, tuple[str, ...]]:
    rows = np.flatnonzero(np.isin(audit.pins.block, blocks))
    held: dict[int, tuple[str, ...]] = {}
    for block, kind in zip(audit.pins.block[rows].tolist(), audit.pins.kind[rows].tolist(), strict=True):
        held[block] = (*held.get(block, ()), pin_word(kind))
    return held


def _finishing_overdue(audit: Audit, limit_seconds: float) -> list[Suspect]:
    slots = audit.slots
    ended = (slots.state == int(RequestState.FINISHING)) & (slots.finishing_ns > 0) & slots.settled
    age = np.float64(audit.now_ns) - slots.finishing_ns.astype(np.float64)
    return [
        Suspect(
            kind=FindingKind.FINISHING_OVERDUE,
            block=-1,
            stamp=int(slots.changed_seq[row]),
            owner=int(slots.serial[row]),
            excess=int(slots.table_blocks[row].sum(dtype=np.int64)),
            holders=(int(slots.slot[row]),),
        )
        for row in np.flatnonzero(ended & (age > limit_seconds * 1e9)).tolist()
    ]


def counts(sample: Sample, audit: Audit | None = None) -> Mapping[str, int]:
    """Count identities that do not hold, by name, with the difference; empty when all hold.

    free + cached + active = capacity always. The recounts of an audit (of the same publication, taken while nothing
    moved) against the counts that the structures keep themselves.
    """
    free, cached, active = (sample.stats.whole(f"{word}_blocks") for word in BlockState.words())
    differences = {"capacity": free + cached + active - sample.head.limits.capacity_blocks}
    if audit is not None and audit.quiescent and audit.published_seq == sample.published_seq:
        differences |= {
            "free": len(audit.free) - free,
            "cached": int(np.count_nonzero(audit.sweep.evictable)) - cached,
            "active": int(np.count_nonzero(audit.sweep.held)) - active,
            "state": audit.contradicted_blocks,
            "index": audit.indexed_blocks - audit.control["index_used"],
        }
    return {name: difference for name, difference in differences.items() if difference}
