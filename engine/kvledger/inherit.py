"""What a new engine start takes over from the one before it: counters, buckets, tenants, the next serial.

The predecessor is marked abandoned and kept; older ones are removed. A predecessor that cannot be read is left alone
and said so: its counters are lost, which is a restart like any other to whoever reads rates.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import LedgerUnreadable
from kvledger.head import Head, read_head
from kvledger.layout import CONTROL_INDEX
from kvledger.source import FileSource, Source

if TYPE_CHECKING:
    from kvledger.writer import Ledger

logger = logging.getLogger(__name__)


def read_array(source: Source, head: Head, name: str) -> NDArray[np.generic]:
    """A private copy of one section."""
    section = head.sections[name]
    return np.frombuffer(source.read(section.offset, section.nbytes), section.dtype).reshape(section.shape)


def take_over(ledger: Ledger, predecessor: Path) -> bool:
    """Add the predecessor's counters to `ledger`, which nobody reads yet. False when it could not be read."""
    try:
        source = FileSource(predecessor)
        try:
            head = read_head(source)
            control = read_array(source, head, "control")
            stats = read_array(source, head, "stats")
            names = read_array(source, head, "tenant.name")
        finally:
            source.close()
    except (LedgerUnreadable, FileNotFoundError) as error:
        logger.warning("predecessor=%s inherited=false reason=%s", predecessor.name, error)
        return False
    columns = _columns(ledger, head, control, names)
    current = stats[int(control[head.control["stats_index"]]) & 1]
    ledger.stats.inherit(head.stats, current.astype(np.float64), columns)
    ledger.control[CONTROL_INDEX["next_serial"]] = max(1, int(control[head.control["next_serial"]]))
    return True


def _columns(ledger: Ledger, head: Head, control: NDArray[np.generic], names: NDArray[np.generic]) -> dict[int, int]:
    """Old tenant column -> new one; what no longer fits is folded into `other`."""
    used = min(max(int(control[head.control["tenant_count"]]), 0), head.limits.max_tenants)
    columns = {c: ledger.tenant_column(bytes(names[c]).decode(errors="replace")) for c in range(used)}
    columns[head.limits.max_tenants] = ledger.limits.max_tenants
    return columns


def retire(past: Sequence[tuple[int, Path]]) -> None:
    """Mark every older ledger of this (engine, rank) abandoned and remove all but the newest of them."""
    for _, path in past:
        _mark_abandoned(path)
    for _, path in past[:-1]:
        path.unlink(missing_ok=True)


def _mark_abandoned(path: Path) -> None:
    try:
        source = FileSource(path)
        try:
            head = read_head(source)
        finally:
            source.close()
    except (LedgerUnreadable, FileNotFoundError):
        return
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        offset = head.sections["control"].offset + 8 * head.control["abandoned"]
        os.pwrite(fd, np.int64(1).tobytes(), offset)
    finally:
        os.close(fd)
