"""A ledger's bytes, copied while its writer goes on, such that an audit of the copy is as good as one of the ledger.

Owns the order in which sections are copied: the order in which a reader audits. Writes to no file and no ledger.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Buffers, Sections
from kvledger.errors import Busy
from kvledger.head import Head
from kvledger.source import Source

ROUNDS = 3  # whole copies made at most to find one during which the writer changed nothing
TRIES = 20  # looks at stats and slots at the start of a round, to begin with requests that are all of one publication
LOOKS = 200
PEAK_LOOKS = 4

_PINS = ("pin.block", "pin.kind", "pin.holder", "pin.since_ns", "pin.lease_ns")
_TABLES = ("arena.next", "arena.chunk")
_RINGS = ("ring.events", "ring.summaries", "tenant.name", "tenant.quota_blocks")
_STAMPS = "block.changed_seq"


class Image:
    """A copy of one ledger in private memory, as long as the ledger. `take` fills it; a later one overwrites it.

    What the copy says follows from the order, as it does for an audit (`kvledger.audit`): number of the publication,
    counts, slots, tables, all other sections, and the blocks' stamps last. So a block whose stamp is at most
    `published_seq` is copied as it was then. Where a live audit would look twice, the copy is corrected: a request
    whose table was given back meanwhile loses its table and gets a stamp above `published_seq`; a pin that changed and
    a peak that was being stored are left out.
    """

    def __init__(self, source: Source, head: Head) -> None:
        self.data: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, head.file_bytes), np.uint8)
        self.monotonic_ns = self.wall_ns = 0
        self.writer_pid: int | None = None
        self.published_seq = 0
        self._source, self._head = source, head
        self._now = Sections(source, head, Buffers())

    def view(self, name: str) -> NDArray[np.generic]:
        """One section of the copy, writable."""
        section = self._head.sections[name]
        raw = self.data[section.offset : section.offset + section.nbytes]
        view: NDArray[np.generic] = raw.view(section.dtype).reshape(section.shape)
        return view

    @property
    def blocks_in_motion(self) -> int:
        """Blocks whose stamps say that they were changed while they were copied."""
        return int(np.count_nonzero(self.view(_STAMPS) > np.uint64(self.published_seq)))

    @property
    def requests_in_motion(self) -> int:
        """Request slots whose stamps say so; an emptied one too, whose request the counts may still include."""
        return int(np.count_nonzero(self.view("slot.changed_seq") > np.uint64(self.published_seq)))

    def take(self) -> None:
        """Copy, a few times if need be, until nothing is in motion. Raises `Truncated` or `Busy`."""
        for _ in range(ROUNDS):
            self._round()
            if not self.blocks_in_motion and not self.requests_in_motion:
                return

    def _round(self) -> None:
        rest = [name for name in self._head.sections if name not in (*_TABLES, *_RINGS, *_PINS, _STAMPS)]
        self._begin()
        self._fetch(_TABLES)
        broken = self._broken_tables()
        self._fetch(_RINGS)
        reserved = self._now.control()
        self._fetch_pins()
        self._fetch(name for name in rest if name not in ("control", "stats") and not name.startswith("slot."))
        self._settle_peaks()
        self._fetch([_STAMPS])
        self._drop_tables(broken)
        self._store("writing_seq", self._now.control()["writing_seq"])
        for name in ("events_reserved", "summaries_reserved"):
            self._store(name, reserved[name])

    def _fetch(self, names: Iterable[str]) -> None:
        for name in names:
            section = self._head.sections[name]
            self._source.read_into(section.offset, self.data[section.offset : section.offset + section.nbytes])

    def _store(self, name: str, value: int) -> None:
        self.view("control")[self._head.control[name]] = value

    # -- the instant: publication, stats, counts, slots ---------------------------------------------------------------

    def _begin(self) -> None:
        """Head, control words, stats and slots of the instant, if possible all of one publication."""
        slots = [name for name in self._head.sections if name.startswith("slot.") and name != "slot.changed_seq"]
        for _ in range(TRIES):
            self.published_seq = max(0, self._take_stats())
            # The counts are read after the number of the publication: older ones could miss what is stable since.
            self._fetch(["control"])
            self._store("published_seq", self.published_seq)
            self._fetch([*slots, "slot.changed_seq"])
            seq = self.view("stats")[0, self._head.stats.gauges["seq"]]
            if not self.requests_in_motion and seq == self.published_seq:
                return

    def _take_stats(self) -> int:
        """Copy the stats of one complete publication into both buffers. Returns the last one complete before.

        `Reader.sample` explains when such a copy is whole.
        """
        for _ in range(LOOKS):
            published = self._now.control()["published_seq"]
            index = self._now.control()["stats_index"]
            self.monotonic_ns, self.wall_ns = time.monotonic_ns(), time.time_ns()
            self.writer_pid = self._source.writer_pid()
            values = self._now.read("stats", 1, start=index & 1)
            after = self._now.control()
            if after["stats_index"] == index or after["writing_seq"] <= published + 1:
                self.view("stats")[:] = values
                return published
        raise Busy(f"no complete publication in {LOOKS} looks: try again")

    # -- what a live audit would look at twice ------------------------------------------------------------------------

    def _broken_tables(self) -> NDArray[np.bool_]:
        """Tables that were given back, begun anew or cut since they were copied, [slots, groups]."""
        lived: NDArray[np.bool_] = np.equal(self._now.read("slot.serial"), self.view("slot.serial"))
        lived &= self._now.read("slot.preemptions") == self.view("slot.preemptions")
        same: NDArray[np.bool_] = lived[:, None] & (self._now.read("slot.first_chunk") == self.view("slot.first_chunk"))
        same &= self._now.read("slot.table_blocks") >= self.view("slot.table_blocks")
        same |= (self.view("slot.serial") == 0)[:, None]
        return ~same

    def _drop_tables(self, broken: NDArray[np.bool_]) -> None:
        self.view("slot.table_blocks")[broken] = 0
        self.view("slot.first_chunk")[broken] = -1
        self.view("slot.last_chunk")[broken] = -1
        stamps, moved = self.view("slot.changed_seq"), broken.any(axis=1)
        stamps[moved] = np.maximum(stamps[moved], np.uint64(self.published_seq + 1))

    def _fetch_pins(self) -> None:
        self._fetch(_PINS)
        moved = np.not_equal(self._now.read("pin.block"), self.view("pin.block"))
        moved |= self._now.read("pin.since_ns") != self.view("pin.since_ns")
        self.view("pin.block")[moved] = -1

    def _settle_peaks(self) -> None:
        peaks = self.view("ring.peaks")
        for _ in range(PEAK_LOOKS):
            again = self._now.read("ring.peaks")
            moving = again != peaks
            if not moving.any():
                return
            peaks[:] = again
        peaks[moving] = np.zeros((), peaks.dtype)
