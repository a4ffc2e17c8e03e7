"""The usual change of blocks: some running requests' tables grew by one block each, allocated just now, nothing else.

Does what `Mirror` and `Holdings` do together, for this case alone, in one pass and in the ledger's order: every block
and slot is stamped before it changes. Whatever is not exactly this case is refused before anything was changed.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np

from kvledger.views import I16
from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_vllm.mirror import Mirror
from kvledger_vllm.requests import Requests
from kvledger_vllm.tables import BlockTables

_ONE, _ZERO = np.int32(1), np.float64(0.0)


class Growth:
    """Growth of the tables of the one cache group; with several groups there is no such step."""

    def __init__(
        self, ledger: Ledger, requests: Requests, mirror: Mirror, table: BlockTables, managers: tuple[Any, ...]
    ) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        self._requests, self._mirror, self._table = requests, mirror, table
        self._vllm_tables = managers[0].req_to_blocks if len(managers) == 1 else None
        self._references = ledger.blocks.ref_count.data
        self._length: Any = ledger.slots.table_blocks[:, 0].data
        self._peak = ledger.slots.peak_blocks.data
        self._active = np.uint8(BlockState.ACTIVE)
        stats = ledger.stats
        self._values, self._active_gauge = stats.values, stats.gauge("active_blocks")

    def find(self, cached: Any, fresh: list[Any]) -> tuple[list[int], list[int]] | None:
        """(slots, ledger blocks) of the tables that grew, None where the step is not of this kind. Changes nothing.

        `cached` is vLLM's data of the running requests it scheduled, `fresh` its blocks, in the order of allocation.
        """
        tables, slot_of, length, references = self._vllm_tables, self._requests.slot_of, self._length, self._references
        rows = list(compress(range(len(cached.req_ids)), cached.new_block_ids))
        if tables is None or len(rows) != len(fresh):
            return None
        slots, blocks = [], []
        ids = cached.req_ids
        for row, block in zip(rows, fresh, strict=True):
            request_id = ids[row]
            table, slot = tables.get(request_id), slot_of.get(request_id)
            number = block.block_id - 1
            if (
                not table
                or slot is None
                or table[-1] is not block
                or len(table) != length[slot] + 1
                or block.ref_cnt != 1
                or references[number]
                or block.next_free_block is not None
            ):
                return None
            slots.append(slot)
            blocks.append(number)
        return slots, blocks

    def apply(self, slots: list[int], blocks: list[int]) -> None:
        """Make the change that was found."""
        at, ids = np.array(slots, np.intp), np.array(blocks, np.intp)
        ledger, view, columns = self._ledger, self._blocks, self._slots
        now, seq = ledger.now_value, ledger.seq_value
        view.changed_seq[ids] = seq
        columns.changed_seq[at] = seq
        tenants = columns.tenant[at]
        view.share_clock[ids] = _ZERO
        view.share_since_ns[ids] = now
        view.allocated_ns[ids] = now
        view.owner[ids] = columns.serial[at]
        view.tenant[ids] = tenants
        self._mirror.take(blocks)
        self._table.append_each(slots, blocks)
        length, peak = self._length, self._peak
        for slot in slots:
            if length[slot] > peak[slot]:
                peak[slot] = length[slot]
        # Copied from vLLM's blocks: `find` saw it there.
        view.ref_count[ids] = _ONE
        view.state[ids] = self._active
        self._charge(tenants)
        self._values[self._active_gauge] += len(blocks)

    def _charge(self, tenants: I16) -> None:
        count, first = len(tenants), tenants.item(0)
        if tenants.tolist().count(first) == count:
            self._ledger.charge(tenants[:1], count)
        else:
            self._ledger.charge(tenants, 1)
