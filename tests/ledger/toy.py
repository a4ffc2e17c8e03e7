"""A toy engine over a ledger: takes, shares, caches, evicts, pins and gives back blocks, one publication at a time.

It keeps the writer's contract (stamp first, entries before counts, lengths last) with plain loops, so that reader tests
have a busy, truthful writer that owes nothing to the real engine.
"""

from __future__ import annotations

import random

import numpy as np

from kvledger.layout import CONTROL_INDEX, SUMMARY
from kvledger.limits import Group, Limits
from kvledger.ring import packer
from kvledger.words import BlockState, Event, PinKind, RequestState
from kvledger.writer import Ledger

BLOCK_TOKENS = 4


def toy_limits(capacity: int = 64, *, groups: int = 1, engine: str = "toy", max_requests: int = 12) -> Limits:
    """Small sizes, in which every list is full and empty again within a few steps."""
    return Limits(
        engine=engine,
        capacity_blocks=capacity,
        max_requests=max_requests,
        groups=tuple(Group(name=f"g{i}", block_size_tokens=BLOCK_TOKENS) for i in range(groups)),
        chunk_blocks=4,
        max_pins=16,
        max_tenants=4,
        event_records=64,
        summary_records=16,
        peak_records=8,
    )


class Toy:
    """The toy engine. Operations belong between `ledger.begin()` and `ledger.end()`; `step` does both."""

    def __init__(self, ledger: Ledger, seed: int = 0) -> None:
        self.ledger, self.random = ledger, random.Random(seed)
        self.control, self.blocks, self.slots = ledger.control, ledger.blocks, ledger.slots
        self.groups = len(ledger.limits.groups)
        self.live: list[int] = []
        self.pinned: list[int] = []
        self._gauges = [ledger.stats.gauge(f"{word}_blocks") for word in BlockState.words()]

    # -- single words -----------------------------------------------------------------------------------------------

    def word(self, name: str) -> int:
        return int(self.control[CONTROL_INDEX[name]])

    def put(self, name: str, value: int) -> None:
        self.control[CONTROL_INDEX[name]] = value

    def stamp(self, block: int) -> None:
        self.blocks.changed_seq[block] = self.ledger.seq

    # -- blocks -------------------------------------------------------------------------------------------------------

    def available(self) -> int:
        return self.word("free_count") + self.word("cached_count")

    def take(self, owner: int, group: int = 0) -> int:
        free = self.word("free_count")
        block = int(self.ledger.free.list[free - 1]) if free else self._oldest_cached()
        self.stamp(block)
        if free:
            self.put("free_count", free - 1)
        else:
            self._forget(block)
        self.blocks.owner[block], self.blocks.group[block] = owner, group
        self.blocks.allocated_ns[block] = self.ledger.now_ns
        self.blocks.state[block], self.blocks.ref_count[block] = BlockState.ACTIVE, 1
        return block

    def share(self, block: int) -> None:
        self.stamp(block)
        if self.blocks.ref_count[block] == 0:
            self._uncache(block)
        self.blocks.state[block] = BlockState.ACTIVE
        self.blocks.ref_count[block] += 1

    def give(self, block: int) -> None:
        self.stamp(block)
        self.blocks.ref_count[block] -= 1
        if self.blocks.ref_count[block] > 0:
            return
        if self.blocks.index_slot[block] >= 0:
            self.blocks.state[block] = BlockState.CACHED
            self._cache(block)
        else:
            self.blocks.state[block] = BlockState.FREE
            free = self.word("free_count")
            self.ledger.free.list[free] = block
            self.put("free_count", free + 1)

    def index(self, block: int) -> None:
        """Give a held block a place in the prefix index."""
        if self.blocks.index_slot[block] >= 0:
            return
        self.stamp(block)
        key = self.random.getrandbits(63) | 1
        slot = key % len(self.ledger.index.block)
        while self.ledger.index.block[slot] >= 0:
            slot = (slot + 1) % len(self.ledger.index.block)
        self.ledger.index.key[slot], self.ledger.index.block[slot] = key, block
        self.blocks.prefix_hash[block], self.blocks.index_slot[block] = key, slot
        self.put("index_used", self.word("index_used") + 1)

    def _cache(self, block: int) -> None:
        tail = self.word("evict_tail")
        if tail - self.word("evict_head") == len(self.ledger.evict.ring):
            tail = self._compact()
        self._append(tail, block)
        self.put("cached_count", self.word("cached_count") + 1)

    def _append(self, tail: int, block: int) -> None:
        self.ledger.evict.ring[tail % len(self.ledger.evict.ring)] = block
        self.blocks.evict_ticket[block] = tail
        self.put("evict_tail", tail + 1)

    def _compact(self) -> int:
        ring, head, tail = self.ledger.evict.ring, self.word("evict_head"), self.word("evict_tail")
        kept = [
            int(ring[p % len(ring)]) for p in range(head, tail) if self.blocks.evict_ticket[ring[p % len(ring)]] == p
        ]
        for block in kept:
            self.stamp(block)
        self.put("evict_head", tail)
        for block in kept:
            self._append(self.word("evict_tail"), block)
        return self.word("evict_tail")

    def _uncache(self, block: int) -> None:
        self.blocks.evict_ticket[block] = -1
        self.put("cached_count", self.word("cached_count") - 1)

    def _oldest_cached(self) -> int:
        ring, head = self.ledger.evict.ring, self.word("evict_head")
        while self.blocks.evict_ticket[ring[head % len(ring)]] != head:
            head += 1
        self.put("evict_head", head)
        return int(ring[head % len(ring)])

    def _forget(self, block: int) -> None:
        self._uncache(block)
        self.ledger.index.block[self.blocks.index_slot[block]] = -1
        self.blocks.index_slot[block], self.blocks.prefix_hash[block] = -1, 0
        self.put("index_used", self.word("index_used") - 1)

    # -- requests -----------------------------------------------------------------------------------------------------

    def admit(self, blocks: int, shared: list[int] | None = None) -> int:
        """A running request whose tables (one per group) begin with `shared` and have `blocks` more of its own."""
        free = self.word("free_slot_count")
        slot, serial = int(self.slots.free_slots[free - 1]), self.word("next_serial")
        self.put("free_slot_count", free - 1)
        self.put("next_serial", serial + 1)
        self.slots.changed_seq[slot] = self.ledger.seq
        for name in ("parent_serial", "finishing_ns", "preemptions", "finish_reason"):
            getattr(self.slots, name)[slot] = 0
        self.slots.arrived_ns[slot] = self.slots.queued_ns[slot] = self.ledger.now_ns
        self.slots.state[slot] = RequestState.RUNNING
        self.slots.id_head[slot] = f"request-{serial}".encode()
        self.slots.own_from_token[slot] = len(shared or []) * BLOCK_TOKENS
        self.slots.computed_tokens[slot] = (len(shared or []) + blocks) * BLOCK_TOKENS
        self.slots.serial[slot] = serial
        for block in shared or []:
            self.share(block)
            self.append(slot, block)
        for group in range(self.groups):
            for _ in range(blocks):
                self.append(slot, self.take(serial, group), group)
        self.live.append(slot)
        self.ledger.event(Event.ADMITTED, serial, blocks=blocks)
        return slot

    def append(self, slot: int, block: int, group: int = 0) -> None:
        width, length = self.ledger.limits.chunk_blocks, int(self.slots.table_blocks[slot, group])
        self.slots.changed_seq[slot] = self.ledger.seq
        if length % width == 0:
            self._link(slot, group)
        self.ledger.arena.chunk[self.slots.last_chunk[slot, group], length % width] = block
        self.slots.table_blocks[slot, group] = length + 1

    def _link(self, slot: int, group: int) -> None:
        free, last = self.word("free_chunk_count"), int(self.slots.last_chunk[slot, group])
        chunk = int(self.ledger.arena.free_chunks[free - 1])
        self.put("free_chunk_count", free - 1)
        self.ledger.arena.next[chunk] = -1
        if last < 0:
            self.slots.first_chunk[slot, group] = chunk
        else:
            self.ledger.arena.next[last] = chunk
        self.slots.last_chunk[slot, group] = chunk

    def grow(self, slot: int) -> None:
        block = self.take(int(self.slots.serial[slot]))
        self.append(slot, block)
        self.slots.computed_tokens[slot] += BLOCK_TOKENS

    def table(self, slot: int, group: int = 0) -> list[int]:
        chunk, blocks = int(self.slots.first_chunk[slot, group]), []
        while chunk >= 0:
            blocks += self.ledger.arena.chunk[chunk].tolist()
            chunk = int(self.ledger.arena.next[chunk])
        return [int(block) for block in blocks[: int(self.slots.table_blocks[slot, group])]]

    def drop_tables(self, slot: int) -> list[int]:
        """Empty a slot's tables; returns the blocks they named, whose references are the caller's to give back."""
        named = [block for group in range(self.groups) for block in self.table(slot, group)]
        for block in named:
            self.stamp(block)
        self.slots.changed_seq[slot] = self.ledger.seq
        for group in range(self.groups):
            chunk = int(self.slots.first_chunk[slot, group])
            self.slots.table_blocks[slot, group] = 0
            self.slots.first_chunk[slot, group] = self.slots.last_chunk[slot, group] = -1
            while chunk >= 0:
                free = self.word("free_chunk_count")
                self.ledger.arena.free_chunks[free] = chunk
                self.put("free_chunk_count", free + 1)
                chunk = int(self.ledger.arena.next[chunk])
        return named

    def finish(self, slot: int) -> None:
        serial = int(self.slots.serial[slot])
        for block in reversed(self.drop_tables(slot)):
            self.give(block)
        self.slots.computed_tokens[slot] = self.slots.own_from_token[slot] = 0
        self.slots.serial[slot] = 0
        free = self.word("free_slot_count")
        self.slots.free_slots[free] = slot
        self.put("free_slot_count", free + 1)
        self.live.remove(slot)
        self.ledger.event(Event.FINISHED, serial)
        record = np.zeros(1, SUMMARY)
        record["serial"], record["seq"] = serial, self.ledger.seq
        self.ledger.summary(packer(SUMMARY).unpack(record.tobytes()))

    # -- pins ---------------------------------------------------------------------------------------------------------

    def pin(self, block: int, *, lease_ns: int = 0, kind: PinKind = PinKind.TRANSFER) -> int:
        free = self.word("free_pin_count")
        entry, pins = int(self.ledger.pins.free_pins[free - 1]), self.ledger.pins
        self.put("free_pin_count", free - 1)
        self.share(block)
        pins.kind[entry], pins.holder[entry], pins.lease_ns[entry] = kind, entry + 1, lease_ns
        pins.since_ns[entry] = self.ledger.now_ns
        pins.block[entry] = block
        self.pinned.append(entry)
        return entry

    def unpin(self, entry: int) -> None:
        block, free = int(self.ledger.pins.block[entry]), self.word("free_pin_count")
        self.stamp(block)
        self.ledger.pins.block[entry] = -1
        self.ledger.pins.free_pins[free] = entry
        self.put("free_pin_count", free + 1)
        self.pinned.remove(entry)
        self.give(block)

    # -- publications -------------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Bring the published counts up to date."""
        free, cached = self.word("free_count"), self.word("cached_count")
        active = self.ledger.limits.capacity_blocks - free - cached
        for gauge, value in zip(self._gauges, (free, cached, active), strict=True):
            self.ledger.stats.values[gauge] = value

    def step(self, operations: int = 3) -> None:
        """One publication of a few random operations."""
        self.ledger.begin()
        self.operate(operations)
        self.count()
        self.ledger.end()

    def operate(self, operations: int) -> None:
        """A few random operations within an open publication."""
        for _ in range(operations):
            self.random.choice((self._admit_some, self._grow_some, self._finish_some, self._pin_some))()

    def _admit_some(self) -> None:
        wanted = self.random.randint(1, 6)
        if not self.word("free_slot_count") or self.available() < (wanted + 3) * self.groups:
            return self._finish_some()
        prefix = self.table(self.random.choice(self.live))[: self.random.randint(0, 3)] if self.live else []
        slot = self.admit(wanted, shared=[block for block in prefix if self.blocks.index_slot[block] >= 0])
        for block in self.table(slot)[:3]:
            self.index(block)
        self.slots.own_from_token[slot] = self.slots.computed_tokens[slot]
        return None

    def _grow_some(self) -> None:
        if self.live and self.available():
            self.grow(self.random.choice(self.live))

    def _finish_some(self) -> None:
        if self.live:
            self.finish(self.random.choice(self.live))

    def _pin_some(self) -> None:
        if self.pinned and self.random.random() < 0.5:
            self.unpin(self.random.choice(self.pinned))
        elif self.live and self.word("free_pin_count"):
            self.pin(self.random.choice(self.table(self.random.choice(self.live))))
