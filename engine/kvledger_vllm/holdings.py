"""What requests hold: vLLM's block tables of all groups, compared with the ledger's and copied where they changed.

Owns how tables, ownership, block-seconds and the slots' block fields act together: `share_base`, `block_seconds`,
`peak_blocks`, `first_block_ns`, and `block.owner`, `tenant`, `group`. Copies tables, derives none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from kvledger.words import RequestClass
from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells
from kvledger_vllm.mirror import Mirror
from kvledger_vllm.requests import Requests
from kvledger_vllm.tables import BlockTables, ledger_blocks

_NS_PER_SECOND = 1e9


@dataclass(slots=True)
class Plan:
    """Changes of tables that were found and not made yet.

    `cleared` are slots whose tables begin anew, with what they held; `extended` (slot, group, blocks) to be put behind
    what is there.
    """

    cleared: dict[int, list[int]] = field(default_factory=dict)
    extended: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.cleared or self.extended)

    def blocks(self) -> Iterator[int]:
        """Every block named by an entry that changes."""
        return chain(*self.cleared.values(), *(blocks for _, _, blocks in self.extended))

    def slots(self) -> set[int]:
        """Every slot of which a table changes."""
        return {*self.cleared, *(slot for slot, _, _ in self.extended)}


class Holdings:
    """The tables of every live request. `managers` are vLLM's, one per cache group, over `pool`."""

    def __init__(
        self, ledger: Ledger, requests: Requests, mirror: Mirror, managers: tuple[Any, ...], pool: Any
    ) -> None:
        self._ledger, self._slots = ledger, Cells(ledger.slots)
        self._requests, self._mirror, self._managers, self._pool = requests, mirror, managers, pool
        self._tables = [BlockTables(ledger, group) for group in range(len(managers))]
        blocks = ledger.blocks
        self._of_block: tuple[Any, ...] = (
            blocks.allocated_ns.data, blocks.ref_count.data, blocks.owner.data, blocks.tenant.data, blocks.group.data,
        )  # fmt: skip
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
        slow = dict.fromkeys(dirty)
        for request_id in grown:
            if only is None or request_id in slow or not self._grew_by_one(plan, request_id, only):
                slow[request_id] = None
        for request_id in slow:
            self._compare(plan, request_id, requests)
        return plan

    def _grew_by_one(self, plan: Plan, request_id: str, tables: Any) -> bool:
        slot, blocks = self._requests.slot_of.get(request_id), tables.get(request_id)
        if slot is None or blocks is None or len(blocks) != self._tables[0].length(slot) + 1 or blocks[-1].is_null:
            return False
        plan.extended.append((slot, 0, [blocks[-1].block_id - 1]))
        return True

    def _compare(self, plan: Plan, request_id: str, requests: dict[str, Any]) -> None:
        said = [ledger_blocks(manager.req_to_blocks.get(request_id, ()), self._pool) for manager in self._managers]
        slot = self._requests.slot_of.get(request_id)
        if slot is None:
            if request_id not in requests or not any(said):
                return
            slot = self._requests.require(requests[request_id])
        mine = [table.blocks_of(slot) for table in self._tables]
        if any(new[: len(old)] != old for old, new in zip(mine, said, strict=True)):
            plan.cleared[slot] = list(chain(*mine))
            mine = [[]] * len(mine)
        for group, (old, new) in enumerate(zip(mine, said, strict=True)):
            if len(new) > len(old):
                plan.extended.append((slot, group, new[len(old) :]))

    # -- the change -----------------------------------------------------------------------------------------------

    def clear(self, plan: Plan) -> None:
        """Give up tables that begin anew: their block-seconds are settled by the clocks as they are now."""
        slots = self._slots
        for slot, blocks in plan.cleared.items():
            self._note_lifetimes(slot, blocks)
            slots.block_seconds[slot] += self._mirror.clocks.total(blocks) - slots.share_base[slot]
            slots.share_base[slot] = 0.0
            slots.own_from_token[slot] = slots.computed_tokens[slot] = 0
            for table in self._tables:
                table.clear(slot)

    def _note_lifetimes(self, slot: int, blocks: list[int]) -> None:
        allocated, references, owner, _, _ = self._of_block
        now, attached, serial = self._ledger.now_ns, self._attached_ns.item(slot), self._slots.serial[slot]
        alone, shared = list[float](), list[float]()
        for block in blocks:
            held = (now - max(allocated[block], attached)) / _NS_PER_SECOND
            (shared if references[block] >= 2 or owner[block] != serial else alone).append(held)
        self._shared.observe_many(shared)
        self._alone.observe_many(alone)

    def extend(self, plan: Plan) -> None:
        """Lengthen tables, once what was allocated anew has begun at 0."""
        slots = self._slots
        for slot, group, blocks in plan.extended:
            if not self.held(slot):
                self._attached_ns[slot] = self._ledger.now_ns
            self._own(slot, blocks, group)
            slots.share_base[slot] += self._mirror.clocks.total(blocks)
            self._tables[group].extend(slot, blocks)
            self._note_peak(slot)

    def _own(self, slot: int, blocks: list[int], group: int) -> None:
        """Blocks that became active are charged to whose table they are in; new ones belong to that request."""
        _, _, owner, tenant, groups = self._of_block
        column, serial, begun = self._slots.tenant[slot], self._slots.serial[slot], self._mirror.begun
        for block in blocks:
            if block in begun:
                tenant[block] = column
            if owner[block] == 0:
                owner[block], groups[block] = serial, group

    def _note_peak(self, slot: int) -> None:
        peaks, held = self._slots.peak_blocks, self.held(slot)
        if peaks[slot] == 0 and self._slots.first_block_ns[slot] == 0:
            self._slots.first_block_ns[slot] = self._ledger.now_ns
            waited = self._ledger.now_ns - self._slots.arrived_ns[slot]
            self._first_block.observe(waited / _NS_PER_SECOND)
        if held > peaks[slot]:
            peaks[slot] = held
