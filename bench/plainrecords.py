"""The plain Python pool with the records our ledger keeps of every block, in lists: owner, times, stamps, clocks.

For the question what the records cost, and what keeping them without arrays would.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from bench.plainpool import PlainPool

_FREE, _CACHED, _ACTIVE = range(3)
_NS_PER_SECOND = 1e9


class RecordingPool:
    """A `PlainPool`, `pool`, and per block: state, owner, tenant, allocation time, stamp, share clock."""

    def __init__(self, free: Iterable[int], *, tenants: int = 65) -> None:
        self.pool = PlainPool(free)
        capacity = len(self.pool.refs)
        self.state, self.owner, self.tenant = [_FREE] * capacity, [0] * capacity, [0] * capacity
        self.allocated_ns, self.changed_seq, self.since_ns = [0] * capacity, [0] * capacity, [0] * capacity
        self.share_clock, self.tenant_blocks = [0.0] * capacity, [0] * tenants
        self.seq = 0

    def take(self, count: int, *, owner: int, tenant: int) -> list[int]:
        """`count` blocks for one request."""
        self.seq += 1
        blocks = self.pool.take(count)
        state, owners, tenants, clock = self.state, self.owner, self.tenant, self.share_clock
        allocated_ns, since_ns, stamps, seq, now_ns = (
            self.allocated_ns,
            self.since_ns,
            self.changed_seq,
            self.seq,
            time.monotonic_ns(),
        )
        for block in blocks:
            stamps[block] = seq
            state[block], owners[block], tenants[block] = _ACTIVE, owner, tenant
            allocated_ns[block] = since_ns[block] = now_ns
            clock[block] = 0.0
        self.tenant_blocks[tenant] += count
        return blocks

    def register(self, blocks: list[int], keys: list[int]) -> None:
        """See `PlainPool.register`."""
        for block in blocks:
            self.changed_seq[block] = self.seq
        self.pool.register(blocks, keys)

    def release(self, blocks: list[int]) -> None:
        """See `PlainPool.release`; a share clock gains the time since over the references there were."""
        state, clock, since_ns, refs = self.state, self.share_clock, self.since_ns, self.pool.refs
        stamps, seq, now_ns, keys, tenant = self.changed_seq, self.seq, time.monotonic_ns(), self.pool.keys, self.tenant
        for block in blocks:
            stamps[block] = seq
            clock[block] += (now_ns - since_ns[block]) / _NS_PER_SECOND / refs[block]
            since_ns[block] = now_ns
            if refs[block] == 1:
                state[block] = _FREE if keys[block] is None else _CACHED
                self.tenant_blocks[tenant[block]] -= 1
        self.pool.release(blocks)
