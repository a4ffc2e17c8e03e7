"""The usual change of blocks: some running requests' tables grew by one block each, allocated just now, nothing else.

Does what `Mirror` and `Holdings` do together, for this case alone and in the ledger's order: every block and slot is
stamped before it changes. Whatever is not exactly this case is refused before anything was changed.

Of a few blocks each store goes through a view of single numbers, in the interpreter's own loop: between two steps
vLLM's work drives numpy's code out of the processor's caches, and to fetch it again costs more than all the stores.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_vllm.mirror import Mirror
from kvledger_vllm.requests import Requests
from kvledger_vllm.tables import BlockTables

_ACTIVE = int(BlockState.ACTIVE)


class Growth:
    """Growth of the tables of the one cache group; with several groups there is no such step."""

    def __init__(
        self, ledger: Ledger, requests: Requests, mirror: Mirror, table: BlockTables, managers: tuple[Any, ...]
    ) -> None:
        blocks, slots = ledger.blocks, ledger.slots
        self._ledger, self._mirror, self._table = ledger, mirror, table
        self._vllm_tables = managers[0].req_to_blocks if len(managers) == 1 else None
        self._slot_of = requests.slot_of
        self._references, self._length = blocks.ref_count.data, table.lengths
        self._begun: tuple[Any, ...] = (
            blocks.changed_seq.data, blocks.share_clock.data, blocks.share_since_ns.data, blocks.allocated_ns.data,
            blocks.owner.data, blocks.tenant.data, self._references, blocks.state.data,
        )  # fmt: skip
        self._of_slot: tuple[Any, ...] = (
            slots.changed_seq.data, slots.serial.data, slots.tenant.data, slots.peak_blocks.data,
        )  # fmt: skip
        stats = ledger.stats
        self._values, self._active_gauge = stats.values, stats.gauge("active_blocks")

    def find(self, cached: Any, fresh: list[Any]) -> list[tuple[int, int, int]] | None:
        """(slot, ledger block, blocks before) of the tables that grew, None where the step is not of this kind.

        Changes nothing. `cached` is vLLM's data of the running requests it scheduled, `fresh` its blocks, in the order
        of allocation.
        """
        tables, slot_of, length, references = self._vllm_tables, self._slot_of, self._length, self._references
        ids = list(compress(cached.req_ids, cached.new_block_ids))
        if tables is None or len(ids) != len(fresh):
            return None
        grown = []
        for request_id, block in zip(ids, fresh, strict=True):
            table, slot = tables.get(request_id), slot_of.get(request_id)
            number = block.block_id - 1
            if (
                not table
                or slot is None
                or table[-1] is not block
                or len(table) - 1 != (before := length[slot])
                or block.ref_cnt != 1
                or references[number]
                or block.next_free_block is not None
            ):
                return None
            grown.append((slot, number, before))
        return grown

    def apply(self, grown: list[tuple[int, int, int]]) -> None:
        """Make the change that was found."""
        now, seq = self._ledger.now_ns, self._ledger.seq
        stamps, clock, since, allocated, owner, tenant, references, state = self._begun
        slot_stamps, serial, tenant_of, peak = self._of_slot
        charged: dict[int, int] = {}
        for slot, block, before in grown:
            stamps[block] = slot_stamps[slot] = seq
            clock[block] = 0.0
            since[block] = allocated[block] = now
            owner[block] = serial[slot]
            tenant[block] = column = tenant_of[slot]
            charged[column] = charged.get(column, 0) + 1
            # Copied from vLLM's blocks: `find` saw it there.
            references[block] = 1
            state[block] = _ACTIVE
            if before >= peak[slot]:
                peak[slot] = before + 1
        for column, count in charged.items():
            self._ledger.charge_column(column, count)
        self._mirror.take([block for _, block, _ in grown])
        self._table.append_each(grown)
        self._values[self._active_gauge] += len(grown)
