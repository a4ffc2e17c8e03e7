"""Who holds the pool at one instant: requests, tenants, pins, and blocks that several live requests share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvledger.snapshot import Sample
from kvledger_agent.audit_facts import AuditFacts

LONG_SHARE = 0.1
"""A request that holds this part of the pool by itself is a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Blocks by who holds them, a shared one in parts. `long_blocks` are held by `long_requests`, of which each holds a
    tenth of the pool or more. `pinned_blocks` are held by pins and in no live table; `shared_blocks` are in
    two live tables or more.
    """

    capacity_blocks: int
    active_blocks: int
    requests: int
    long_requests: int
    long_blocks: float
    tenants: Mapping[str, float]
    shared_blocks: int
    pinned_blocks: int


def holders_of(sample: Sample, facts: AuditFacts, active_blocks: int) -> Holders:
    """The holders of a sample."""
    capacity = sample.head.limits.capacity_blocks
    held = facts.held_blocks
    long = held >= LONG_SHARE * capacity
    return Holders(
        capacity_blocks=capacity,
        active_blocks=active_blocks,
        requests=int(np.count_nonzero(held)),
        long_requests=int(np.count_nonzero(long)),
        long_blocks=float(held[long].sum()),
        tenants={name: blocks for name, blocks in sample.stats.tenant_blocks.items() if blocks > 0},
        shared_blocks=sum(facts.group_shared_blocks),
        pinned_blocks=facts.pinned_only_blocks,
    )
