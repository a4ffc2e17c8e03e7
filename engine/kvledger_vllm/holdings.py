"""What requests hold: vLLM's block tables of all groups as they were told, copied into the ledger where they changed.

Owns how tables, ownership, block-seconds and the slots' block fields act together: `share_base`, `block_seconds`,
`peak_blocks`, `first_block_ns`, and `block.owner`, `tenant`, `group`. Copies tables, derives none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.words import RequestClass
from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells
from kvledger_vllm.message import Message
from kvledger_vllm.mirror import Mirror
from kvledger_vllm.requests import Requests
from kvledger_vllm.tables import BlockTables


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
    """The tables of every live request, in `groups` cache groups."""

    def __init__(self, ledger: Ledger, requests: Requests, mirror: Mirror, groups: int) -> None:
        self._ledger, self._slots = ledger, Cells(ledger.slots)
        self._requests, self._mirror = requests, mirror
        self._tables = [BlockTables(ledger, group) for group in range(groups)]
        self.missed = 0
        """Tables that changed without a word of it: all have to be told anew."""
        blocks = ledger.blocks
        self._of_block: tuple[Any, ...] = (
            blocks.allocated_ns.data, blocks.ref_count.data, blocks.owner.data, blocks.tenant.data, blocks.group.data,
        )  # fmt: skip
        self._attached_ns = np.zeros(ledger.limits.max_requests, np.int64)
        histogram = ledger.stats.histogram
        self._first_block = histogram("time_to_first_block", **{"class": RequestClass.DEFAULT.word})
        self._alone = histogram("block_reference_lifetime", shared="false")
        self._shared = histogram("block_reference_lifetime", shared="true")

    def held(self, slot: int) -> int:
        """Blocks in all tables of a slot."""
        return sum(table.length(slot) for table in self._tables)

    def last(self, slot: int) -> int:
        """The last block of a slot's first table, -1 where it is empty."""
        return self._tables[0].last(slot)

    # -- what changed ---------------------------------------------------------------------------------------------

    def plan(self, message: Message) -> Plan:
        """Compare the tables that a message tells of with the ledger's. `missed` counts those that it cannot follow."""
        plan = Plan()
        whole: dict[str, list[list[int]]] = (message.rare or {}).get("tables", {})
        for request_id, said in whole.items():
            self._compare(plan, request_id, said)
        for request_id, length, (new, *_) in zip(*(message.grown or ((), (), ())), strict=True):
            if request_id not in whole:
                slot = self._requests.require(request_id)
                if self._tables[0].length(slot) + len(new) != length:
                    self.missed += 1
                    continue
                plan.extended.append((slot, 0, [block - 1 for block in new]))
        return plan

    def prove(self, proof: list[Any] | None) -> None:
        """Compare the ends of a few tables with what they are said to be."""
        for request_id, last in zip((proof or [])[::4], (proof or [])[3::4], strict=True):
            slot = self._requests.slot_of.get(request_id)
            self.missed += slot is not None and last >= 0 and self._tables[0].last(slot) != last

    def _compare(self, plan: Plan, request_id: str, said: list[list[int]]) -> None:
        slot = self._requests.slot_of.get(request_id)
        if slot is None:
            if not any(said):
                return
            slot = self._requests.require(request_id)
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
            for table in self._tables:
                table.clear(slot)

    def _note_lifetimes(self, slot: int, blocks: list[int]) -> None:
        allocated, references, owner, _, _ = self._of_block
        now, attached, serial = self._ledger.now_ns, self._attached_ns.item(slot), self._slots.serial[slot]
        alone, shared = list[float](), list[float]()
        for block in blocks:
            held = (now - max(allocated[block], attached)) / NS_PER_SECOND
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

    def lengthen(self, behind: Mapping[int, list[int]]) -> None:
        """Put newly taken blocks behind tables that are not empty, by slot: they belong to it, and it pays for them."""
        ledger, table, peaks = self._ledger, self._tables[0], self._slots.peak_blocks
        slots, blocks = ledger.slots, np.fromiter(chain(*behind.values()), np.intp)
        of = np.repeat(np.fromiter(behind, np.intp), list(map(len, behind.values())))
        ledger.stamp(blocks)
        slots.changed_seq[of] = ledger.seq_value
        ledger.blocks.owner[blocks], ledger.blocks.tenant[blocks] = slots.serial[of], slots.tenant[of]
        ledger.blocks.group[blocks] = 0
        for slot, new in behind.items():
            table.extend(slot, new)
            peaks[slot] = max(peaks[slot], table.length(slot))

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
            self._first_block.observe(waited / NS_PER_SECOND)
        if held > peaks[slot]:
            peaks[slot] = held
