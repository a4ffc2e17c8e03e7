"""A ledger that another process has created, and that this one writes: the other keeps the file, the lock, its life.

Whoever watches the ledger sees the life of its creator, whose lock it is. Before the adoption the creator has
published; from then on it stores nothing but why an instrument has failed, and `closed` after the last publication.
"""

from __future__ import annotations

import mmap
import os

from kvledger import segment
from kvledger.clock import Clock
from kvledger.errors import BadGeometry
from kvledger.head import read_head
from kvledger.layout import plan_layout
from kvledger.limits import Limits
from kvledger.source import MemorySource
from kvledger.writer import Ledger


def adopt(descriptor: int, limits: Limits, clock: Clock) -> Ledger:
    """The ledger of an open file, with everything that its creator has published. Takes no lock.

    `limits` are those it was created with. Raises `BadGeometry` where the file was not laid out by them.
    """
    memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    head = read_head(MemorySource(memoryview(memory).toreadonly()))
    layout = plan_layout(limits)
    if layout.file_bytes != head.file_bytes:
        raise BadGeometry(
            f"a ledger of {head.file_bytes} bytes, not {layout.file_bytes}: it was made with other limits"
        )
    ledger = Ledger(layout, lambda name: segment.section_view(memory, layout, name), clock, epoch=head.epoch, new=False)
    ledger._memory = memory
    ledger.resume()
    return ledger
