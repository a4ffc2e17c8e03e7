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

from kvledger import blank, creation, segment, stores
from kvledger.blockseconds import BlockSeconds
from kvledger.clock import Clock, RealClock
from kvledger.columns import TenantColumns
from kvledger.layout import CONTROL_INDEX, Layout
from kvledger.limits import Limits
from kvledger.peaks import Peaks
from kvledger.ring import RingWriter
from kvledger.stats import Stats
from kvledger.stores import Hook
from kvledger.views import Arena, Blocks, Evict, Free, Index, Instrument, Pins, Prefixes, Rings, Slots, Tenants, build
from kvledger.words import Event

logger = logging.getLogger(__name__)

_PUBLISHED, _WRITING = CONTROL_INDEX["published_seq"], CONTROL_INDEX["writing_seq"]
_STATS_INDEX, _IDLE_SINCE = CONTROL_INDEX["stats_index"], CONTROL_INDEX["idle_since_ns"]
_PUBLISHED_GAUGES = ("seq", "clock_ns", "monotonic_ns", "wall_ns", "active_blocks", "cached_blocks")


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
        new: bool = True,
    ) -> None:
        def section(name: str) -> NDArray[Any]:
            return stores.hooked(array(name), hook)

        self.layout, self.limits, self.clock, self.epoch = layout, layout.limits, clock, epoch
        self.control: NDArray[np.int64] = section("control")
        self.blocks, self.free, self.index = build(Blocks, section), build(Free, section), build(Index, section)
        self.evict, self.arena, self.pins = build(Evict, section), build(Arena, section), build(Pins, section)
        self.tenants, self.slots, self.rings = build(Tenants, section), build(Slots, section), build(Rings, section)
        self.prefixes = build(Prefixes, section)
        self.stats = Stats(layout.stats)
        self._values = self.stats.values
        self.seq = 0
        # What only this writer changes, it need not read back: the last publication, its buffer, whether it was idle.
        self._published_seq, self._stats_index, self._is_idle = 0, 0, False
        self._read_now_ns, self._read_wall_ns = clock.now_ns, clock.wall_ns
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
        self._words = stores.words(self.control, hook)
        self._buffers = (stores.words(self._published[0], hook), stores.words(self._published[1], hook))
        self._working = stores.words(self.stats.array, hook)
        self._set_seq, self._set_now = self.seq_value.data, self.now_value.data
        self._changed = self.blocks.changed_seq
        self._block_seconds = BlockSeconds(self.stats, self.now_ns)
        self._advance, self.charged_columns = self._block_seconds.advance, self._block_seconds.charged
        self._note_peak = Peaks(self.rings.peaks, hook).note
        self._columns = TenantColumns(self.tenants, self.control, self.limits.max_tenants)
        self._gauge_indices = tuple(self.stats.gauge(name) for name in _PUBLISHED_GAUGES)
        self._idle_gauge = self.stats.gauge("idle")
        self._segment: segment.Segment | None = None
        self._memory: mmap.mmap | None = None
        if new:
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
        tenants: Sequence[str] = (),
    ) -> Ledger:
        """Create the file of a new engine start, inherit the predecessor's counters, mark it abandoned, go live.

        `tenants` get columns before those of the predecessor do, of which the last may find none left.
        Raises a `LedgerUnwritable` subclass: `NotMemory`, `NoSpace`, `AlreadyWritten` or `BadGeometry`.
        """
        return creation.create(
            cls, directory, limits, clock=clock or RealClock(), allow_disk=allow_disk, hook=hook, tenants=tenants
        )

    @classmethod
    def in_memory(cls, limits: Limits, *, clock: Clock | None = None) -> Ledger:
        """A ledger in private memory: for tests, and as the reference without a file. `image()` reads it back."""
        return creation.in_memory(cls, limits, clock=clock or RealClock())

    @property
    def path(self) -> Path | None:
        """Where the file lies; None for a ledger in private memory."""
        return self._segment.path if self._segment else None

    @property
    def descriptor(self) -> int:
        """The open file, for a process that is to adopt it; closing it here would drop the writer's lock."""
        assert self._segment is not None
        return self._segment.fd

    @property
    def image(self) -> memoryview:
        """The whole file's bytes, read-only, without opening the file (which would drop the writer's lock)."""
        source = self._segment.map if self._segment else self._memory
        assert source is not None
        return memoryview(source).toreadonly()

    # -- publications ---------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Open a publication: every change until `end` carries its number. Returns the number."""
        self.seq = seq = self._published_seq + 1
        self._words[_WRITING] = seq
        self.now_ns = now = self._read_now_ns()
        self._set_seq[()], self._set_now[()] = seq, now
        return seq

    def stamp(self, blocks: NDArray[np.signedinteger[Any]]) -> None:
        """Mark blocks (1-D ids) as changing in this publication. Must come before the change itself."""
        self._changed[blocks] = self.seq_value

    def end(self, *, idle: bool = False) -> None:
        """Close the publication: clocks, peaks and stats become visible, then its number."""
        self.now_ns = now = self._read_now_ns()
        values, words, published = self._values, self._words, self.seq
        self._advance(now)
        seq, clock, monotonic, wall, active, cached = self._gauge_indices
        held = values[active]
        self._note_peak(now, held, held + values[cached])
        values[seq] = published
        values[clock] = values[monotonic] = now
        values[wall] = self._read_wall_ns()
        if idle != self._is_idle:
            self._is_idle = values[self._idle_gauge] = idle
            words[_IDLE_SINCE] = now if idle else 0
        index = self._stats_index + 1
        self._buffers[index & 1][:] = self._working
        self._stats_index = words[_STATS_INDEX] = index
        self._published_seq = words[_PUBLISHED] = published

    def resume(self) -> None:
        """Go on from what was published last, which another writer of this file did before this one."""
        words = self._words
        self.seq = self._published_seq = int(words[_PUBLISHED])
        self._stats_index, self._is_idle = int(words[_STATS_INDEX]), bool(words[_IDLE_SINCE])
        self.stats.array[:] = self._published[self._stats_index & 1]

    def publish_now(self, *, idle: bool = True) -> None:
        """An empty publication: a heartbeat, or the first one of a new ledger."""
        self.begin()
        self.end(idle=idle)

    def advance_block_seconds(self) -> None:
        """Bring block-seconds up to now: before whoever changes `stats.tenant_blocks` itself, marking the column."""
        self._advance(self.now_ns)

    def charge_column(self, column: int, blocks: int) -> None:
        """Charge that many blocks, fewer if negative, to one tenant from now on."""
        self._block_seconds.charge_column(column, blocks, self.now_ns)

    def charge_since(self, columns: NDArray[np.signedinteger[Any]], since_ns: NDArray[np.int64]) -> None:
        """Charge one more block to each of `columns`, held since a time of its own that has passed."""
        self._block_seconds.charge_since(columns, since_ns, self.now_ns)

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
        return self._columns.of(name)

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
        if self._segment is not None:
            self.publish_now()
            self.leave(clean=clean)

    def leave(self, *, clean: bool) -> None:
        """As `close`, where another process that has adopted the ledger has published last. Idempotent."""
        if self._segment is None:
            return
        self.control[CONTROL_INDEX["closed"]] = int(clean)
        self._segment.release()
        self._segment = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(clean=kind is None)
