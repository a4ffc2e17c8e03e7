"""The writer's end of a ledger: creation, publications, stats and rings. One thread of one process writes.

Owns when things become visible, never what they mean: the engine's pool, tables and requests store into `views`.
Order is the contract: a block is stamped before it or a table entry naming it changes; stats are published into the
buffer nobody reads; `published_seq` moves last.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvledger.inherit as inherit
from kvledger import segment, stores
from kvledger.catalog import OTHER_TENANT
from kvledger.clock import Clock, RealClock
from kvledger.layout import CONTROL_INDEX, EVENT, Layout, plan_layout
from kvledger.limits import Limits
from kvledger.ring import RingWriter
from kvledger.stats import Stats
from kvledger.stores import Hook
from kvledger.views import Arena, Blocks, Evict, Free, Index, Pins, Rings, Slots, Tenants, build
from kvledger.words import Event

logger = logging.getLogger(__name__)

_PUBLISHED, _WRITING = CONTROL_INDEX["published_seq"], CONTROL_INDEX["writing_seq"]
_STATS_INDEX, _IDLE_SINCE = CONTROL_INDEX["stats_index"], CONTROL_INDEX["idle_since_ns"]
_NS_PER_SECOND = 1_000_000_000


class Ledger:
    """A ledger being written: its arrays, its stats, its rings and its publications."""

    def __init__(
        self,
        layout: Layout,
        array: Callable[[str], NDArray[Any]],
        clock: Clock,
        *,
        epoch: int = 1,
        hook: Hook | None = None,
    ) -> None:
        def section(name: str) -> NDArray[Any]:
            return stores.hooked(array(name), hook)

        self.layout, self.limits, self.clock, self.epoch = layout, layout.limits, clock, epoch
        self.control: NDArray[np.int64] = section("control")
        self.blocks, self.free, self.index = build(Blocks, section), build(Free, section), build(Index, section)
        self.evict, self.arena, self.pins = build(Evict, section), build(Arena, section), build(Pins, section)
        self.tenants, self.slots, self.rings = build(Tenants, section), build(Slots, section), build(Rings, section)
        self.stats = Stats(layout.stats)
        self.seq = 0
        self.now_ns = clock.now_ns()
        self._published = section("stats")
        self._events = RingWriter(self.rings.events, self.control, "events")
        self._summaries = RingWriter(self.rings.summaries, self.control, "summaries")
        self._gauges = dict(layout.stats.gauges)
        self._advanced_ns = self.now_ns
        self._block_seconds = self.stats.tenant_counter("block_seconds_total")
        self._columns: dict[str, int] = {}
        self._segment: segment.Segment | None = None
        self._memory: mmap.mmap | None = None
        _initialise(self)

    @classmethod
    def create(
        cls,
        directory: Path,
        limits: Limits,
        *,
        clock: Clock | None = None,
        allow_disk: bool = False,
        hook: Hook | None = None,
    ) -> Ledger:
        """Create the file of a new engine start, inherit the predecessor's counters, mark it abandoned, go live.

        Raises a `LedgerUnwritable` subclass: `NotMemory`, `NoSpace`, `AlreadyWritten` or `BadGeometry`.
        """
        clock = clock or RealClock()
        layout = plan_layout(limits)
        segment.prepare_directory(directory, allow_disk=allow_disk)
        with segment.creation_lock(directory, limits.engine, limits.rank):
            segment.refuse_second_writer(directory, limits.engine, limits.rank)
            segment.remove_unfinished(directory, layout)
            past = segment.epochs(directory, limits.engine, limits.rank)
            epoch = past[-1][0] + 1 if past else 1
            made = segment.Segment(directory, layout)
            try:
                ledger = cls(layout, made.array, clock, epoch=epoch, hook=hook)
                ledger._segment = made
                if past:
                    inherit.take_over(ledger, past[-1][1])
                    ledger.stats.values[ledger.stats.counter("engine_restarts_total")] += 1
                ledger.publish_now()
                head = segment.header_bytes(
                    layout, epoch=epoch, virtual_clock=clock.virtual, created_wall_ns=clock.wall_ns()
                )
                made.reveal(segment.ledger_path(directory, limits.engine, limits.rank, epoch), head)
            except BaseException:
                made.discard()
                raise
            inherit.retire(past)
        return ledger

    @classmethod
    def in_memory(cls, limits: Limits, *, clock: Clock | None = None) -> Ledger:
        """A ledger in private memory: for tests, and as the reference without a file. `image()` reads it back."""
        layout = plan_layout(limits)
        clock = clock or RealClock()
        memory = mmap.mmap(-1, layout.file_bytes)
        head = segment.header_bytes(layout, epoch=1, virtual_clock=clock.virtual, created_wall_ns=clock.wall_ns())
        memory[: len(head)] = head
        ledger = cls(layout, lambda name: segment.section_view(memory, layout, name), clock)
        ledger._memory = memory
        ledger.publish_now()
        return ledger

    @property
    def path(self) -> Path | None:
        """Where the file lies; None for a ledger in private memory."""
        return self._segment.path if self._segment else None

    @property
    def image(self) -> memoryview:
        """The whole file's bytes, read-only, without opening the file (which would drop the writer's lock)."""
        source = self._segment.map if self._segment else self._memory
        assert source is not None
        return memoryview(source).toreadonly()

    # -- publications ---------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Open a publication: every change until `end` carries its number. Returns the number."""
        self.seq = int(self.control[_PUBLISHED]) + 1
        self.control[_WRITING] = self.seq
        self.now_ns = self.clock.now_ns()
        return self.seq

    def stamp(self, blocks: NDArray[np.signedinteger[Any]]) -> None:
        """Mark blocks (1-D ids) as changing in this publication. Must come before the change itself."""
        self.blocks.changed_seq[blocks] = self.seq

    def end(self, *, idle: bool = False) -> None:
        """Close the publication: clocks, peaks and stats become visible, then its number."""
        now = self.clock.now_ns()
        self.now_ns = now
        values, gauges, control = self.stats.values, self._gauges, self.control
        self._advance_block_seconds(now)
        self._note_peak(now)
        values[gauges["seq"]] = self.seq
        values[gauges["clock_ns"]] = now
        values[gauges["monotonic_ns"]] = now
        values[gauges["wall_ns"]] = self.clock.wall_ns()
        values[gauges["idle"]] = float(idle)
        control[_IDLE_SINCE] = (int(control[_IDLE_SINCE]) or now) if idle else 0
        index = int(control[_STATS_INDEX]) + 1
        self._published[index & 1] = self.stats.array
        control[_STATS_INDEX] = index
        control[_PUBLISHED] = self.seq

    def publish_now(self, *, idle: bool = True) -> None:
        """An empty publication: a heartbeat, or the first one of a new ledger."""
        self.begin()
        self.end(idle=idle)

    def _advance_block_seconds(self, now_ns: int) -> None:
        elapsed = (now_ns - self._advanced_ns) / _NS_PER_SECOND
        if elapsed > 0:
            self._block_seconds += elapsed * self.stats.tenant_blocks
            self._advanced_ns = now_ns

    def advance_block_seconds(self) -> None:
        """Bring the tenants' block-second clocks to now; called before `stats.tenant_blocks` changes."""
        self._advance_block_seconds(self.now_ns)

    def _note_peak(self, now_ns: int) -> None:
        second = now_ns // _NS_PER_SECOND
        peaks = self.rings.peaks
        slot = second % len(peaks)
        active = int(self.stats.values[self._gauges["active_blocks"]])
        used = active + int(self.stats.values[self._gauges["cached_blocks"]])
        record = peaks[slot]
        if int(record["second"]) != second:
            peaks[slot] = (second, active, used)
        elif active > record["active_blocks"] or used > record["used_blocks"]:
            peaks[slot] = (second, max(active, int(record["active_blocks"])), max(used, int(record["used_blocks"])))

    # -- rings ----------------------------------------------------------------------------------------------------

    def event(self, event: Event, serial: int, *, blocks: int = 0, detail: int = 0) -> None:
        """Append one lifecycle event of a request; `detail` is the word that goes with it (cause, reason)."""
        self.events(event, [serial], blocks=[blocks], detail=detail)

    def events(
        self,
        event: Event,
        serials: Sequence[int] | NDArray[np.uint64],
        *,
        blocks: Any = 0,
        detail: int | Sequence[int] = 0,
    ) -> None:
        """Append one event of the same kind for each serial; `blocks` and `detail` are scalars or one per serial."""
        if len(serials) == 0:
            return
        records = np.zeros(len(serials), EVENT)
        records["serial"], records["seq"], records["time_ns"] = serials, self.seq, self.now_ns
        records["blocks"], records["event"], records["detail"] = blocks, int(event), detail
        self._events.append(records)

    def summaries(self, records: NDArray[Any]) -> None:
        """Append summaries (dtype `layout.SUMMARY`) of requests that ended."""
        self._summaries.append(records)

    # -- tenants --------------------------------------------------------------------------------------------------

    def tenant_column(self, name: str) -> int:
        """The column of a tenant, made on first sight; the last one (`other`) when all named columns are taken."""
        column = self._columns.get(name)
        if column is None:
            column = self._new_column(name)
        return column

    def _new_column(self, name: str) -> int:
        used = CONTROL_INDEX["tenant_count"]
        column = int(self.control[used])
        if name == OTHER_TENANT or column >= self.limits.max_tenants:
            return self.limits.max_tenants
        self.tenants.name[column] = name.encode()[:64]
        self.control[used] = column + 1
        self._columns[name] = column
        return column

    def overflow(self, count: int = 1) -> None:
        """Count records for which a section had no room: never fatal, never hidden."""
        self.control[CONTROL_INDEX["overflows"]] += count

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """A clean stop: publish, mark the file `closed` and leave it for the next start. Idempotent."""
        if self._segment is None:
            return
        self.publish_now()
        self.control[CONTROL_INDEX["closed"]] = 1
        self._segment.release()
        self._segment = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _initialise(ledger: Ledger) -> None:
    """Fill a zeroed file with the values that mean `empty` where 0 does not."""
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
