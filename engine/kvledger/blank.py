"""The values that mean `empty` in a new ledger, where 0 does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvledger.catalog import OTHER_TENANT
from kvledger.layout import CONTROL_INDEX

if TYPE_CHECKING:
    from kvledger.writer import Ledger


def fill(ledger: Ledger) -> None:
    """Store those values into the zeroed arrays of a ledger that nobody reads yet."""
    limits, control = ledger.limits, ledger.control
    ledger.blocks.index_slot[:] = -1
    ledger.blocks.evict_ticket[:] = -1
    ledger.index.block[:] = -1
    ledger.pins.block[:] = -1
    ledger.arena.next[:] = -1
    ledger.slots.first_chunk[:] = -1
    ledger.slots.last_chunk[:] = -1
    # Stacks are filled downwards so that the lowest id is taken first.
    ledger.free.list[:] = np.arange(limits.capacity_blocks - 1, -1, -1)
    ledger.arena.free_chunks[:] = np.arange(limits.arena_chunks - 1, -1, -1)
    ledger.slots.free_slots[:] = np.arange(limits.max_requests - 1, -1, -1)
    ledger.pins.free_pins[:] = np.arange(limits.pin_records - 1, -1, -1)
    ledger.tenants.name[limits.max_tenants] = OTHER_TENANT.encode()
    control[CONTROL_INDEX["free_count"]] = limits.capacity_blocks
    control[CONTROL_INDEX["free_chunk_count"]] = limits.arena_chunks
    control[CONTROL_INDEX["free_slot_count"]] = limits.max_requests
    control[CONTROL_INDEX["free_pin_count"]] = limits.pin_records
    control[CONTROL_INDEX["next_serial"]] = 1
    ledger.stats.values[ledger.stats.gauge("free_blocks")] = limits.capacity_blocks
    ledger.stats.values[ledger.stats.gauge("queue_since_ns")] = ledger.now_ns
