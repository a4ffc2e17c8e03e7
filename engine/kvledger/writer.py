"""The writer's end of a ledger: creation, publications, stats and rings. One thread of one process writes.

Owns when things become visible, never what they mean: the engine's pool, tables and requests store into `views`.
Order is the contract: a block is stamped before it or a table entry naming it changes; stats are published into the
buffer nobody reads; `published_seq` moves last.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvledger.inherit as inherit
from kvledger import blank, segment, stores
from kvledger.catalog import OTHER_TENANT
from kvledger.clock import Clock, RealClock
from kvledger.layout import CONTROL_INDEX, Layout, plan_layout
from kvledger.limits import Limits
from kvledger.ring import RingWriter
from kvledger.stats import Stats
from kvledger.stores import Hook
from kvledger.views import Arena, Blocks, Evict, Free, Index, Instrument, Pins, Rings, Slots, Tenants, build
from kvledger.words import Event

logger = logging.getLogger(__name__)

_PUBLISHED, _WRITING = CONTROL_INDEX["published_seq"], CONTROL_INDEX["writing_seq"]
_STATS_INDEX, _IDLE_SINCE = CONTROL_INDEX["stats_index"], CONTROL_INDEX["idle_since_ns"]
_PUBLISHED_GAUGES = ("seq", "clock_ns", "monotonic_ns", "wall_ns", "idle", "active_blocks", "cached_blocks")
_NS_PER_SECOND = 1_000_000_000
_FEW_TENANTS, _FEW_COLUMNS = 8, 16  # so many are handled faster one by one than as an array


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
        self.seq_value: NDArray[np.uint64] = np.zeros((), np.uint64)
        """`seq` as a 0-d array: storing it into an array of stamps needs no conversion, which is most of a store."""
        self.now_value: NDArray[np.int64] = np.array(self.now_ns)
        """`now_ns` of the open publication's begin, likewise."""
        self.instrument = build(Instrument, section)
        self._published = section("stats")
        self._events = RingWriter(self.rings.events, self.control, "events")
        self._summaries = RingWriter(self.rings.summaries, self.control, "summaries")
        # A publication's own stores go through memoryviews, three times as fast; a drill's hook needs arrays.
        self._words = _words(self.control, hook)
        self._buffers = (_words(self._published[0], hook), _words(self._published[1], hook))
        self._working = _words(self.stats.array, hook)
        self._set_seq, self._set_now = self.seq_value.data, self.now_value.data
        self._changed = self.blocks.changed_seq
        self._block_seconds_step = np.empty(layout.stats.columns)
        # Indices of the blocks and block-seconds of every tenant column that has ever been charged.
        self._charged: dict[int, tuple[int, int]] = {}
        self._gauge_indices = tuple(self.stats.gauge(name) for name in _PUBLISHED_GAUGES)
        self._peak_until_ns, self._peak_at, self._peak_active, self._peak_used = 0, 0, -1, -1
        self._peaks = self.rings.peaks
        self._peak_words = _words(self._peaks.view(np.int32), hook)  # four of them a record, see `PEAK`
        self._advanced_ns = self.now_ns
        self._block_seconds = self.stats.tenant_counter("block_seconds_total")
        self._columns: dict[str, int] = {}
        self._segment: segment.Segment | None = None
        self._memory: mmap.mmap | None = None
        blank.fill(self)

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
        words = self._words
        self.seq = seq = int(words[_PUBLISHED]) + 1
        words[_WRITING] = seq
        self.now_ns = now = self.clock.now_ns()
        self._set_seq[()], self._set_now[()] = seq, now
        return seq

    def stamp(self, blocks: NDArray[np.signedinteger[Any]]) -> None:
        """Mark blocks (1-D ids) as changing in this publication. Must come before the change itself."""
        self._changed[blocks] = self.seq_value

    def end(self, *, idle: bool = False) -> None:
        """Close the publication: clocks, peaks and stats become visible, then its number."""
        self.now_ns = now = self.clock.now_ns()
        values, words = self.stats.values, self._words
        self._advance_block_seconds(now)
        seq, clock, monotonic, wall, idle_gauge, active, cached = self._gauge_indices
        held, used = values[active], values[active] + values[cached]
        if held > self._peak_active or used > self._peak_used or now >= self._peak_until_ns:
            self._note_peak(now, int(held), int(used))
        values[seq] = self.seq
        values[clock] = values[monotonic] = now
        values[wall] = self.clock.wall_ns()
        values[idle_gauge] = idle
        words[_IDLE_SINCE] = (int(words[_IDLE_SINCE]) or now) if idle else 0
        index = int(words[_STATS_INDEX]) + 1
        self._buffers[index & 1][:] = self._working
        words[_STATS_INDEX] = index
        words[_PUBLISHED] = self.seq

    def publish_now(self, *, idle: bool = True) -> None:
        """An empty publication: a heartbeat, or the first one of a new ledger."""
        self.begin()
        self.end(idle=idle)

    def _advance_block_seconds(self, now_ns: int) -> None:
        elapsed_ns = now_ns - self._advanced_ns
        if elapsed_ns <= 0:
            return
        self._advanced_ns = now_ns
        elapsed = elapsed_ns / _NS_PER_SECOND
        if len(self._charged) > _FEW_TENANTS:
            np.multiply(self.stats.tenant_blocks, elapsed, self._block_seconds_step)
            np.add(self._block_seconds, self._block_seconds_step, self._block_seconds)
            return
        values = self.stats.values
        for blocks, block_seconds in self._charged.values():
            if held := values[blocks]:
                values[block_seconds] += held * elapsed

    def charge(self, columns: NDArray[np.signedinteger[Any]], change: int) -> None:
        """Charge `change` blocks, 1 or -1, to the tenant of every column given, from now on."""
        self._advance_block_seconds(self.now_ns)
        stats = self.stats
        if len(columns) > _FEW_COLUMNS:
            charged = np.bincount(columns, minlength=len(stats.tenant_blocks))
            stats.tenant_blocks += charged if change > 0 else -charged
            columns = charged.nonzero()[0]
            change = 0
        for column in columns.tolist():
            self._charge(column, change)

    def charge_column(self, column: int, blocks: int) -> None:
        """Charge that many blocks, fewer if negative, to one tenant from now on."""
        self._advance_block_seconds(self.now_ns)
        self._charge(column, blocks)

    def _charge(self, column: int, blocks: int) -> None:
        stats = self.stats
        first = stats.plan.tenant_blocks
        stats.values[first + column] += blocks
        if column not in self._charged:
            clock = stats.plan.tenant_counters["block_seconds_total", ()]
            self._charged[column] = (first + column, clock + column)

    def _note_peak(self, now_ns: int, active: int, used: int) -> None:
        """A new second has begun, or more blocks are active, or active and cached, than before in this one."""
        if now_ns < self._peak_until_ns:
            # `used` first: it is never less than `active`.
            if used > self._peak_used:
                self._peak_words[self._peak_at + 3] = self._peak_used = used
            if active > self._peak_active:
                self._peak_words[self._peak_at + 2] = self._peak_active = active
            return
        second = now_ns // _NS_PER_SECOND
        slot = second % len(self._peaks)
        self._peak_until_ns, self._peak_at = (second + 1) * _NS_PER_SECOND, 4 * slot
        self._peak_active, self._peak_used = active, used
        self._peaks[slot] = (second, active, used)

    # -- rings ----------------------------------------------------------------------------------------------------

    def event(self, event: Event, serial: int, *, blocks: int = 0, detail: int = 0) -> None:
        """Append one lifecycle event of a request; `detail` is the word that goes with it (cause, reason)."""
        self._events.append((serial, self.seq, self.now_ns, blocks, event, detail, 0))

    def summary(self, record: tuple[Any, ...]) -> None:
        """Append the summary of a request that ended: the fields of `layout.SUMMARY` in order, arrays as bytes."""
        self._summaries.append(record)

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

    def instrument_failed(self, why: str) -> None:
        """Say for good that whoever mirrors an engine into this ledger has given up. Publishes nothing.

        A publication that was open stays open: what it has half changed is stamped, and nobody judges it.
        """
        failure = self.instrument.failure
        failure[0] = why.encode(errors="replace")[: failure.dtype.itemsize]
        self.control[CONTROL_INDEX["instrument_failed"]] = 1

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Publish and leave the file for the next start, marked `closed` after a clean stop. Idempotent.

        An end that nobody asked for is not clean: its readers must see an engine that is `dead`.
        """
        if self._segment is None:
            return
        self.publish_now()
        self.control[CONTROL_INDEX["closed"]] = int(clean)
        self._segment.release()
        self._segment = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(clean=kind is None)


def _words(array: NDArray[Any], hook: Hook | None) -> Any:
    """A 1-D array of 64-bit elements for fast access; the array itself where a hook must see its stores."""
    return array if hook is not None else array.data
