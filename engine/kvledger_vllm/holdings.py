"""What requests hold: vLLM's block tables of all groups, compared with the ledger's and copied where they changed.

Owns how tables, ownership, block-seconds and the slots' block fields act together: `share_base`, `block_seconds`,
`peak_blocks`, `first_block_ns`, and `block.owner`, `tenant`, `group`. Copies tables, derives none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvledger.words import RequestClass
from kvledger.writer import Ledger
from kvledger_vllm.mirror import Mirror
from kvledger_vllm.requests import Ids, Requests
from kvledger_vllm.tables import BlockTables, ledger_blocks

_NS_PER_SECOND = 1e9
_NONE: Ids = np.empty(0, np.intp)


@dataclass(slots=True)
class Plan:
    """Changes of tables that were found and not made yet.

    `ones` are (slot, block) of tables of group 0 that grew by one block; `cleared` slots whose tables begin anew, with
    what they held; `extended` (slot, group, blocks) to be put behind what is there.
    """

    ones: list[tuple[int, int]] = field(default_factory=list)
    cleared: dict[int, Ids] = field(default_factory=dict)
    extended: list[tuple[int, int, Ids]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ones or self.cleared or self.extended)

    def blocks(self) -> Ids:
        """Every block named by an entry that changes."""
        parts = [*self.cleared.values(), *(blocks for _, _, blocks in self.extended)]
        if self.ones:
            parts.append(np.array([block for _, block in self.ones], np.intp))
        return np.concatenate(parts) if parts else _NONE

    def slots(self) -> Ids:
        """Every slot of which a table changes."""
        changed = [*self.cleared, *(slot for slot, _, _ in self.extended), *(slot for slot, _ in self.ones)]
        return np.array(changed, np.intp)


class Holdings:
    """The tables of every live request. `managers` are vLLM's, one per cache group, over `pool`."""

    def __init__(
        self, ledger: Ledger, requests: Requests, mirror: Mirror, managers: tuple[Any, ...], pool: Any
    ) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        self._requests, self._mirror, self._managers, self._pool = requests, mirror, managers, pool
        self._tables = [BlockTables(ledger, group) for group in range(len(managers))]
        self._attached_ns = np.zeros(ledger.limits.max_requests, np.int64)
        histogram = ledger.stats.histogram
        self._first_block = histogram("time_to_first_block", **{"class": RequestClass.DEFAULT.word})
        self._alone = histogram("block_reference_lifetime", shared="false")
        self._shared = histogram("block_reference_lifetime", shared="true")

    def table(self, group: int) -> BlockTables:
        """The tables of one cache group."""
        return self._tables[group]

    def held(self, slot: int) -> int:
        """Blocks in all tables of a slot."""
        return sum(table.length(slot) for table in self._tables)

    # -- what changed ---------------------------------------------------------------------------------------------

    def plan(self, grown: Iterable[str], dirty: Iterable[str], requests: dict[str, Any]) -> Plan:
        """Compare with the ledger's the tables of requests that grew, and of those that may have changed in any way."""
        plan = Plan()
        only = self._managers[0].req_to_blocks if len(self._managers) == 1 else None
        slow = set(dirty)
        for request_id in grown:
            if only is None or request_id in slow or not self._grew_by_one(plan, request_id, only):
                slow.add(request_id)
        for request_id in slow:
            self._compare(plan, request_id, requests)
        return plan

    def _grew_by_one(self, plan: Plan, request_id: str, tables: Any) -> bool:
        slot, blocks = self._requests.slot_of.get(request_id), tables.get(request_id)
        if slot is None or blocks is None or len(blocks) != self._tables[0].length(slot) + 1 or blocks[-1].is_null:
            return False
        plan.ones.append((slot, blocks[-1].block_id - 1))
        return True

    def _compare(self, plan: Plan, request_id: str, requests: dict[str, Any]) -> None:
        said = [ledger_blocks(manager.req_to_blocks.get(request_id, ()), self._pool) for manager in self._managers]
        slot = self._requests.slot_of.get(request_id)
        if slot is None:
            if request_id not in requests or not any(map(len, said)):
                return
            slot = self._requests.require(requests[request_id])
        mine = [table.blocks_of(slot) for table in self._tables]
        begins = all(np.array_equal(new[: len(old)], old) for old, new in zip(mine, said, strict=True))
        if not begins:
            plan.cleared[slot] = np.concatenate(mine)
            mine = [_NONE] * len(mine)
        for group, (old, new) in enumerate(zip(mine, said, strict=True)):
            if len(new) > len(old):
                plan.extended.append((slot, group, new[len(old) :]))

    def differing(self, request_id: str) -> bool:
        """Whether a request's tables are not what the ledger says: for the scan."""
        slot = self._requests.slot_of.get(request_id)
        return slot is not None and any(
            len(manager.req_to_blocks.get(request_id, ())) < table.length(slot)
            for manager, table in zip(self._managers, self._tables, strict=True)
        )

    # -- the change -----------------------------------------------------------------------------------------------

    def clear(self, plan: Plan) -> None:
        """Give up tables that begin anew: their block-seconds are settled by the clocks as they are now."""
        slots = self._slots
        for slot, blocks in plan.cleared.items():
            self._note_lifetimes(slot, blocks)
            seconds = float(self._mirror.clocks.read(blocks).sum())
            slots.block_seconds[slot] += seconds - slots.share_base[slot]
            slots.share_base[slot] = 0.0
            slots.own_from_token[slot] = slots.computed_tokens[slot] = 0
            for table in self._tables:
                table.clear(slot)

    def _note_lifetimes(self, slot: int, blocks: Ids) -> None:
        since = np.maximum(self._blocks.allocated_ns[blocks], self._attached_ns[slot])
        held = (self._ledger.now_ns - since) / _NS_PER_SECOND
        shared = self._blocks.ref_count[blocks] >= 2
        shared |= self._blocks.owner[blocks] != self._slots.serial[slot]
        self._shared.observe_many(held[shared])
        self._alone.observe_many(held[~shared])

    def extend(self, plan: Plan) -> None:
        """Lengthen tables, once what was allocated anew has begun at 0."""
        for slot, group, blocks in plan.extended:
            if not self.held(slot):
                self._attached_ns[slot] = self._ledger.now_ns
            self._own(np.full(len(blocks), slot, np.intp), blocks, group)
            self._slots.share_base[slot] += self._mirror.clocks.read(blocks).sum()
            self._tables[group].extend(slot, blocks)
            self._note_peak(slot)
        if plan.ones:
            slots = np.array([slot for slot, _ in plan.ones], np.intp)
            blocks = np.array([block for _, block in plan.ones], np.intp)
            self._own(slots, blocks, 0)
            self._slots.share_base[slots] += self._mirror.clocks.read(blocks)
            self._tables[0].append_one(slots, blocks)
            self._slots.peak_blocks[slots] = np.maximum(
                self._slots.peak_blocks[slots], self._slots.table_blocks[slots, 0]
            )

    def _own(self, slots: Ids, blocks: Ids, group: int) -> None:
        """Blocks that became active are charged to whose table they are in; new ones belong to that request."""
        begun = self._mirror.begun[blocks]
        if begun.any():
            self._blocks.tenant[blocks[begun]] = self._slots.tenant[slots[begun]]
        unowned = self._blocks.owner[blocks] == 0
        if unowned.any():
            self._blocks.owner[blocks[unowned]] = self._slots.serial[slots[unowned]]
            self._blocks.group[blocks[unowned]] = group

    def _note_peak(self, slot: int) -> None:
        peaks, held = self._slots.peak_blocks, self.held(slot)
        if peaks.item(slot) == 0 and self._slots.first_block_ns.item(slot) == 0:
            self._slots.first_block_ns[slot] = self._ledger.now_ns
            waited = self._ledger.now_ns - self._slots.arrived_ns.item(slot)
            self._first_block.observe(waited / _NS_PER_SECOND)
        if held > peaks.item(slot):
            peaks[slot] = held
