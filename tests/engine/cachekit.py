"""A `KvCache` over a ledger in private memory, its request slots filled by hand, and its ledger read back."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from kvledger import segment
from kvledger.clock import VirtualClock
from kvledger.head import read_head
from kvledger.layout import CONTROL_INDEX, Layout, plan_layout
from kvledger.limits import Group, Limits
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.views import I32
from kvledger.words import ReleaseCause, RequestState
from kvledger.writer import Ledger
from kvledger_engine.evict import Eviction
from kvledger_engine.faults import FaultPlan
from kvledger_engine.kvcache import KvCache

SALT = 7
MAX_TOKENS = 64


@cache
def small_limits(
    *,
    capacity: int = 16,
    block_size: int = 4,
    max_requests: int = 6,
    chunk_blocks: int = 2,
    logical_blocks: int = 40,
    pins: int = 3,
    caching: bool = True,
    block_bytes: int = 64,
) -> Limits:
    """Limits small enough for every edge to be met within a few operations."""
    return Limits(
        engine="kit",
        capacity_blocks=capacity,
        max_requests=max_requests,
        groups=(Group(block_size_tokens=block_size, block_bytes=block_bytes),),
        max_logical_blocks=logical_blocks,
        chunk_blocks=chunk_blocks,
        max_pins=pins,
        max_tenants=3,
        event_records=2,
        summary_records=2,
        peak_records=4,
        prefix_caching=caching,
    )


def windowed_limits(windows: tuple[int, ...], sink_blocks: int = 0, **options: Any) -> Limits:
    """As `small_limits`, with a cache group for each window in tokens, and sinks before it; 0 = full attention."""
    plain = small_limits(**options)
    sinks = sink_blocks * plain.groups[0].block_size_tokens
    groups = tuple(
        replace(plain.groups[0], name=f"group_{index}", window_tokens=window, sink_tokens=sinks if window else 0)
        for index, window in enumerate(windows)
    )
    return replace(plain, groups=groups, max_logical_blocks=400)


_layout = cache(plan_layout)


class Memory:
    """Memory for ledgers of the same limits, one after the other."""

    def __init__(self, limits: Limits) -> None:
        self.layout: Layout = _layout(limits)
        self.bytes = mmap.mmap(-1, self.layout.file_bytes)
        self._head = segment.header_bytes(self.layout, epoch=1, virtual_clock=True, created_wall_ns=0)
        self._blank = bytes(self.layout.file_bytes)
        self.bytes[: len(self._head)] = self._head
        self._source = MemorySource(memoryview(self.bytes).toreadonly())
        self._read = read_head(self._source)

    def ledger(self, clock: VirtualClock, hook: Callable[[], None] | None = None) -> Ledger:
        """A new, empty ledger in this memory."""
        self.bytes[:] = self._blank
        self.bytes[: len(self._head)] = self._head
        ledger = Ledger(
            self.layout, lambda name: segment.section_view(self.bytes, self.layout, name), clock, epoch=1, hook=hook
        )
        ledger.publish_now()
        return ledger

    def reader(self) -> Reader:
        """A reader of the ledger that is in this memory now."""
        return Reader(self._source, self._read)


@cache
def shared_memory(limits: Limits) -> Memory:
    """One memory per limits: for tests that make thousands of ledgers."""
    return Memory(limits)


class Kit:
    """A cache, its ledger and clock. `tokens` I32[slots, MAX_TOKENS] is the token store."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        memory: Memory | None = None,
        faults: FaultPlan | None = None,
        key_bits: int = 64,
        eviction: Eviction = Eviction.LRU,
        hook: Callable[[], None] | None = None,
    ) -> None:
        self.memory = memory or Memory(limits or small_limits())
        self.clock = VirtualClock()
        self.ledger = self.memory.ledger(self.clock, hook)
        self.reader = self.memory.reader()
        self.kv = KvCache(self.ledger, faults=faults, key_bits=key_bits, eviction=eviction)
        self.slots, self.blocks = self.ledger.slots, self.ledger.blocks
        self.tokens: I32 = np.zeros((self.ledger.limits.max_requests, MAX_TOKENS), np.int32)
        self._serial = 0

    # -- requests -------------------------------------------------------------------------------------------------

    def seat(self, slot: int, *, tenant: int = 0, serial: int | None = None) -> int:
        """Put a request into a slot, holding nothing. Returns its serial."""
        if serial is None:
            self._serial += 1
            serial = self._serial
            for name in ("peak_blocks", "first_block_ns", "block_seconds", "share_base"):
                getattr(self.slots, name)[slot] = 0
            self.slots.arrived_ns[slot] = self.clock.now_ns()
        self.slots.changed_seq[slot] = self.ledger.seq
        self.slots.tenant[slot] = tenant
        self.slots.state[slot] = RequestState.RUNNING
        self.slots.serial[slot] = serial
        return serial

    def unseat(self, slot: int) -> None:
        """Empty a slot whose request holds nothing any more."""
        self.slots.changed_seq[slot] = self.ledger.seq
        self.slots.serial[slot] = 0

    # -- whole publications ---------------------------------------------------------------------------------------

    def start(self, slot: int, tokens: list[int], *, salt: int = SALT, tenant: int = 0) -> int | None:
        """Admit a request, compute all of its tokens, and publish that. Returns the tokens it found cached."""
        self.ledger.begin()
        self.seat(slot, tenant=tenant)
        self.tokens[slot, : len(tokens)] = tokens
        given = self.tokens[slot, : len(tokens)]
        found = self.kv.match(slot, given, salt)
        hit = self.kv.admit(slot, given, salt, len(tokens) - found)
        if hit is None:
            self.unseat(slot)
        else:
            self.commit({slot: len(tokens)}, salt=salt)
        self.ledger.end()
        return hit

    def commit(self, after: dict[int, int], *, salt: int = SALT) -> None:
        """Say that slots have computed so many tokens, within an open publication."""
        slots, computed = np.array(list(after)), np.array(list(after.values()))
        self.kv.commit(slots, computed, self.tokens, np.full(len(self.tokens), salt, np.uint64))

    def step(self, after: dict[int, int], *, salt: int = SALT) -> tuple[list[int], list[int]]:
        """Grow slots to so many tokens and compute them: one engine step. Returns the copies it made."""
        self.ledger.begin()
        self.kv.grow(np.array(list(after)), np.array(list(after.values())))
        sources, targets = self.kv.take_copies()
        self.ledger.end()
        self.ledger.begin()
        self.kv.copies_done()
        self.commit(after, salt=salt)
        self.ledger.end()
        return sources.tolist(), targets.tolist()

    def fork(self, source: int, target: int) -> None:
        """Fork a request into an empty slot and publish that."""
        self.ledger.begin()
        self.seat(target)
        self.tokens[target] = self.tokens[source]
        self.kv.fork(source, target)
        self.ledger.end()

    def end(self, slot: int, cause: ReleaseCause = ReleaseCause.FINISH) -> int:
        """Release a request's blocks, empty its slot, and publish that."""
        self.ledger.begin()
        released = self.kv.release(slot, cause=cause)
        self.unseat(slot)
        self.ledger.end()
        return released

    # -- what the ledger says -------------------------------------------------------------------------------------

    def counter(self, name: str, **labels: str) -> float:
        """A counter of the ledger."""
        return float(self.ledger.stats.values[self.ledger.stats.counter(name, **labels)])

    def histogram(self, name: str, **labels: str) -> tuple[int, float]:
        """(observations, sum) of a histogram."""
        span = self.ledger.stats.plan.histograms[name, tuple(labels.items())]
        values: Any = self.ledger.stats.array[span.index : span.index + span.size]
        return int(values[:-1].sum()), float(values[-1])

    def held(self, slot: int) -> list[int]:
        """A slot's block table."""
        return [int(block) for block in self.kv.blocks_of(slot)]

    def eviction_order(self) -> list[int]:
        """Cached blocks, the next to be evicted first."""
        head, tail = (int(self.ledger.control[CONTROL_INDEX[f"evict_{end}"]]) for end in ("head", "tail"))
        positions = np.arange(head, tail)
        blocks = self.ledger.evict.ring[positions % len(self.ledger.evict.ring)]
        return [int(block) for block in blocks[self.blocks.evict_ticket[blocks] == positions]]
