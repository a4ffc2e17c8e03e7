"""How a ledger comes to be: the file of a new engine start, or private memory. Writes no publication of its own.

Owns the order of a start: nobody finds the file before all that it inherits is in it, and its predecessor is marked
abandoned only after it has gone live.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvledger import inherit, segment
from kvledger.clock import Clock
from kvledger.layout import plan_layout
from kvledger.limits import Limits
from kvledger.stores import Hook

if TYPE_CHECKING:
    from kvledger.writer import Ledger


def create(
    kind: type[Ledger],
    directory: Path,
    limits: Limits,
    *,
    clock: Clock,
    allow_disk: bool,
    hook: Hook | None,
    tenants: Sequence[str],
) -> Ledger:
    """See `Ledger.create`."""
    layout = plan_layout(limits)
    segment.prepare_directory(directory, allow_disk=allow_disk)
    with segment.creation_lock(directory, limits.engine, limits.rank):
        segment.refuse_second_writer(directory, limits.engine, limits.rank)
        segment.remove_unfinished(directory, layout)
        past = segment.epochs(directory, limits.engine, limits.rank)
        epoch = past[-1][0] + 1 if past else 1
        made = segment.Segment(directory, layout)
        try:
            ledger = kind(layout, made.array, clock, epoch=epoch, hook=hook)
            ledger._segment = made
            for name in tenants:
                ledger.tenant_column(name)
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


def in_memory(kind: type[Ledger], limits: Limits, *, clock: Clock) -> Ledger:
    """See `Ledger.in_memory`."""
    layout = plan_layout(limits)
    memory = mmap.mmap(-1, layout.file_bytes)
    head = segment.header_bytes(layout, epoch=1, virtual_clock=clock.virtual, created_wall_ns=clock.wall_ns())
    memory[: len(head)] = head
    ledger = kind(layout, lambda name: segment.section_view(memory, layout, name), clock)
    ledger._memory = memory
    ledger.publish_now()
    return ledger
