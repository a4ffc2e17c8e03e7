"""Who waits for the pool behind whom: the head of the queue, and those behind it that would fit now. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvledger.snapshot import Sample
from kvledger.words import RequestState, WaitCause
from kvledger_agent.needs import blocks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHead:
    """Requests that wait for the pool: what the first of them needs, what there is, and who behind it would fit.

    Who needs more than half as much as the head is no smaller one that it holds up: they are of a kind.
    `room_blocks` are free and cached blocks less what running prefills still need and what admission keeps free.
    """

    waiting: int
    head_blocks: int
    room_blocks: int
    fitting: int


def queue_head(sample: Sample, available_blocks: int) -> QueueHead | None:
    """The queue for the pool; None when nobody waits for it. Prefixes that may be cached are not looked up."""
    slots, limits = sample.slots, sample.head.limits
    waiting = np.flatnonzero(sample.wait_causes() == int(WaitCause.POOL))
    if not len(waiting):
        return None
    waiting = waiting[np.lexsort((slots.serial[waiting], slots.state[waiting] == RequestState.WAITING))]
    tokens = slots.prompt_tokens[waiting].astype(np.int64) + np.maximum(slots.output_tokens[waiting], 0)
    needed = blocks_of(limits, np.maximum(tokens, 1))
    room = available_blocks - _promised(sample) - limits.admission_watermark_blocks
    return QueueHead(
        waiting=len(waiting),
        head_blocks=int(needed[0]),
        room_blocks=room,
        fitting=int(np.count_nonzero(needed[1:] <= min(room, needed[0] // 2))) if needed[0] > room else 0,
    )


def _promised(sample: Sample) -> int:
    """Blocks that running prefills still need for the prompts they were admitted with."""
    slots = sample.slots
    running = slots.state == RequestState.RUNNING
    wanted = blocks_of(sample.head.limits, np.maximum(slots.prompt_tokens[running].astype(np.int64), 0))
    held = slots.table_blocks[running].astype(np.int64).sum(axis=1)
    return int(np.maximum(wanted - held, 0).sum())
