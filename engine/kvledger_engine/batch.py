"""Batch: what one step asks of the compute, and the protocol every compute fulfils. The contract between the two.

Plain arrays, no request and no ledger in them. Shapes: r rows, t tokens in all rows, m samples, c block copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvledger.views import I32, I64, U64

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores of a step's samples, filled in by the compute: natural logarithms of the model's own probabilities.

    `samples` I64[s] are the samples that want them; `logprobs` F32[s] of their drawn tokens; `top_tokens` I32[s, k] and
    `top_logprobs` F32[s, k] are the likeliest tokens, the likeliest first, with k the most that anybody wants.
    """

    samples: I64
    logprobs: F32
    top_tokens: I32
    top_logprobs: F32

    @classmethod
    def wanted(cls, logprobs: I32) -> Scoring | None:
        """Room for the scores of a step: `logprobs` I32[m] tops of each sample, -1 = no scores. None if all are -1."""
        samples = np.flatnonzero(logprobs >= 0)
        if not len(samples):
            return None
        shape = len(samples), int(logprobs.max())
        return cls(samples, np.zeros(shape[0], np.float32), np.zeros(shape, np.int32), np.zeros(shape, np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTables:
    """The block tables of a step's rows in one cache group.

    Row i's is `blocks[offsets[i]:offsets[i + 1]]`: the blocks of the first `sink_tokens` of its sequence, then, after a
    gap of `skipped[i]` blocks that have left the window, all others. A query sees the last `window_tokens` positions,
    its own included, and the sinks before it; 0 = all of them.
    """

    blocks: I32
    offsets: I32
    skipped: I32
    window_tokens: int = 0
    sink_tokens: int = 0


@dataclass(slots=True)
class CopyTime:
    """What a step's block copies took, filled in by the compute; 0 where there were none."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopies:
    """Whole blocks to copy between the cache and host memory before anything else of a step: first out, then in.

    I32 each, a source and a target in turn. No block is the target of two copies of one direction.
    """

    out_sources: I32
    out_hosts: I32
    in_hosts: I32
    in_targets: I32


# Not frozen: of so many fields that is half as much work again as all of a step's bookkeeping in Python. Nobody changes
# one.
@dataclass(slots=True, kw_only=True)
class Batch:
    """One step. Row i computes positions [starts[i], starts[i] + counts[i]) of one sequence.

    `tokens` I32[t] are the inputs of all rows, row after row. Row i's block table is
    `table_blocks[table_offsets[i]:table_offsets[i + 1]]`, enough for its last position. `copy_source` and `copy_target`
    I32[c] are blocks to copy before anything is written. Sample j is drawn after the last position of row
    `sample_entry[j]` with `sample_temperature[j]` (0 = greedy) and `sample_seed[j]`, and belongs to slot
    `sample_slots[j]`; a row has one sample, several where sequences are about to be forked from it, or none where its
    prompt is not complete.
    """

    block_size_tokens: int
    slots: I32
    starts: I32
    counts: I32
    tokens: I32
    table_blocks: I32
    table_offsets: I32
    copy_source: I32
    copy_target: I32
    sample_entry: I32
    sample_slots: I32
    sample_seed: U64
    sample_temperature: F32
    sample_top_p: F32 | None = None
    """Of each sample; None = nobody cuts the distribution."""
    scores: Scoring | None = None
    """Where scores of the samples go; None = nobody asked."""
    groups: tuple[GroupTables, ...] = ()
    """The tables of all cache groups, group 0 among them; () = there is one, of full attention."""
    host_copies: HostCopies | None = None
    """What is swapped out and in, made before `copy_source`; None = nothing."""
    copy_time: CopyTime = field(default_factory=CopyTime)
    """Where the time of the copies of `copy_source` goes."""

    @property
    def tables(self) -> tuple[GroupTables, ...]:
        """The tables of all cache groups."""
        if self.groups:
            return self.groups
        return (GroupTables(blocks=self.table_blocks, offsets=self.table_offsets, skipped=np.zeros_like(self.starts)),)


class Compute(Protocol):
    """Fills the cache for a batch and draws its samples."""

    def execute(self, batch: Batch) -> I32:
        """One token id per sample, I32[m].

        What it raises ends the requests of the batch: `MemoryError` as `out_of_memory`, anything else as
        `engine_error`. After `ComputeLost` every request ends and the engine stops.
        """


@dataclass(slots=True)
class Rows:
    """Rows of a step while it is put together: which slot computes how many tokens from where. Nobody changes one.

    `lengths` is how many tokens the sequence has; a row that reaches it is sampled. `ends` are the tokens in the cache
    once the step is done, `total_tokens` those that it computes. `complete`: every row is known to reach its length.
    """

    slots: I32
    starts: I32
    counts: I32
    lengths: I32
    ends: I32
    total_tokens: int
    complete: bool = False

    @classmethod
    def none(cls) -> Rows:
        """No row."""
        empty = np.zeros(0, np.int32)
        return cls(empty, empty, empty, empty, empty, 0)

    @classmethod
    def of(cls, slots: I32, starts: I32, counts: I32, lengths: I32) -> Rows:
        """Rows whose sums are not known yet."""
        return cls(slots, starts, counts, lengths, starts + counts, int(counts.sum()))

    def where(self, mask: NDArray[np.bool_]) -> Rows:
        """The rows a boolean mask of shape (r,) selects."""
        return Rows.of(self.slots[mask], self.starts[mask], self.counts[mask], self.lengths[mask])

    def without(self, slots: I32) -> Rows:
        """The rows of all other slots."""
        return self.where(~np.isin(self.slots, slots))

    def plus(self, rows: list[tuple[int, int, int, int]]) -> Rows:
        """These rows and more of them, each (slot, start, count, length)."""
        if not rows:
            return self
        more = np.array(rows, np.int32).T
        return Rows.of(
            np.concatenate((self.slots, more[0])),
            np.concatenate((self.starts, more[1])),
            np.concatenate((self.counts, more[2])),
            np.concatenate((self.lengths, more[3])),
        )


def ragged_positions(starts: I32 | I64, counts: I32 | I64) -> I64:
    """starts[i], starts[i] + 1, … for counts[i] positions of every row, row after row."""
    ends = np.cumsum(counts, dtype=np.int64)
    positions: I64 = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
    return positions
