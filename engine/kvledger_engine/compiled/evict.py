"""The eviction order: cached blocks, least recently used first, as a ring in the ledger.

An entry at position p is valid while its block's ticket is p, so a block leaves the order by losing its ticket and the
ring is never searched. Owns `evict.ring`, `block.evict_ticket` and three control words; never a block's content.
"""

from __future__ import annotations

from typing import Any

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32, I64, U64
from kvledger_engine.compiled.arrays import POLICY, Arrays
from kvledger_engine.compiled.kernel import aside, helper
from kvledger_engine.compiled.lives import LRU, spent
from kvledger_engine.compiled.order import settle

_HEAD, _TAIL, _COUNT = CONTROL_INDEX["evict_head"], CONTROL_INDEX["evict_tail"], CONTROL_INDEX["cached_count"]


@helper
def append(control: I64, ring: I32, evict_ticket: I64, changed_seq: U64, seq: Any, scratch: I64, block: int) -> None:
    """Add a stamped block that is not in the order as its newest."""
    if control[_TAIL] + 1 - control[_HEAD] > len(ring):
        _compact(control, ring, evict_ticket, changed_seq, seq, scratch)
    tail = control[_TAIL]
    ring[tail & (len(ring) - 1)] = block
    evict_ticket[block] = tail
    control[_TAIL] = tail + 1
    control[_COUNT] += 1


@aside
def _compact(control: I64, ring: I32, evict_ticket: I64, changed_seq: U64, seq: Any, scratch: I64) -> None:
    """Move the valid entries together behind the tail, through the end of `scratch`, of which callers use the front."""
    mask, tail, valid, end = len(ring) - 1, control[_TAIL], 0, len(scratch)
    for position in range(control[_HEAD], tail):
        block = ring[position & mask]
        if evict_ticket[block] == position:
            valid += 1
            scratch[end - valid] = block
            changed_seq[block] = seq
    settle()
    control[_HEAD] = tail
    for number in range(valid):
        block = scratch[end - 1 - number]
        ring[(tail + number) & mask] = block
        evict_ticket[block] = tail + number
    control[_TAIL] = tail + valid


@helper
def remove(control: I64, evict_ticket: I64, block: int) -> None:
    """Take a stamped block out of the order, wherever it is in it."""
    evict_ticket[block] = -1
    control[_COUNT] -= 1


@helper
def draw(arrays: Arrays, popped: I64, first: int) -> None:
    """Stamp and remove as many blocks as `popped` has room for from number `first` on; there must be so many.

    What a policy passes over goes to the end, as if it had been used: the ring is the order of judgement.
    """
    control, ring, evict_ticket, lives = arrays.control, arrays.ring, arrays.evict_ticket, arrays.lives
    changed_seq, seq, policy = arrays.changed_seq, arrays.seq[0], arrays.settings[POLICY]
    mask, head, found, wanted = len(ring) - 1, control[_HEAD], first, len(popped)
    # With lives the tail moves on while blocks are judged.
    while found < wanted and head < control[_TAIL]:
        block = ring[head & mask]
        valid = evict_ticket[block] == head
        head += 1
        if not valid:
            continue
        changed_seq[block] = seq
        if policy != LRU and spent(policy, lives, block):
            settle()
            control[_HEAD] = head
            tail = control[_TAIL]
            ring[tail & mask] = block
            evict_ticket[block] = tail
            control[_TAIL] = tail + 1
        else:
            popped[found] = block
            found += 1
    settle()
    for number in range(first, found):
        evict_ticket[popped[number]] = -1
    control[_COUNT] -= found - first
    control[_HEAD] = head
    assert found == wanted, "the eviction order lacks blocks"
