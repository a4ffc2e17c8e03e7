"""The cell model: a compute in numpy that is an instrument of truth. One 64-bit cell per token slot, no tensor.

A cell is the running sum of a hash of (token, position), so it depends on everything before it, as keys and values do,
and the cell before is read back through the block table. The next token is a hash of every cell of the sequence, read
back through the table, with its position, and of the seed where there is a temperature. A wrong table, a missing
copy, a foreign or stale cell changes what comes out.
"""

from __future__ import annotations

import time

import numpy as np

from kvledger.views import I32, I64, U64
from kvledger_engine.batch import F32, Batch, HostCopies, ragged_positions

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: the increment of splitmix64
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HIGH_BITS = np.uint64(40)


def mix(values: U64) -> U64:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014), element by element, in place; returns `values`."""
    values ^= values >> np.uint64(30)
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values


def token_hashes(tokens: I32, positions: I64) -> U64:
    """The hash of each (token, position)."""
    return mix(mix(tokens.astype(np.uint64) + _GOLDEN) + positions.astype(np.uint64) * _GOLDEN)


def cell_hashes(cells: U64, positions: I64) -> U64:
    """What each cell adds to the hash of its sequence."""
    return mix(cells + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def draw(sequence_hashes: U64, seeds: U64, temperatures: F32, vocab_size: int) -> I32:
    """The token that follows sequences of these hashes; the seed counts where the temperature is above 0."""
    seeded = sequence_hashes + np.where(temperatures > 0, mix(seeds + _GOLDEN), np.uint64(0))
    return ((mix(seeded) >> _HIGH_BITS) % np.uint64(vocab_size)).astype(np.int32)


class CellModel:
    """Cells of a pool, shape (capacity_blocks, block_size_tokens), those in host memory, and the compute over them."""

    def __init__(self, *, capacity_blocks: int, block_size_tokens: int, vocab_size: int, swap_blocks: int = 0) -> None:
        self.cells: U64 = np.zeros((capacity_blocks, block_size_tokens), np.uint64)
        self.host_cells: U64 = np.zeros((swap_blocks, block_size_tokens), np.uint64)
        self._flat = self.cells.reshape(-1)
        self._block_size, self._vocab_size = block_size_tokens, vocab_size

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`: copies, then writes, then reads."""
        assert batch.block_size_tokens == self._block_size
        if batch.host_copies is not None:
            self._swap(batch.host_copies)
        if len(batch.copy_source):
            began_ns = time.perf_counter_ns()
            self.cells[batch.copy_target] = self.cells[batch.copy_source]
            batch.copy_time.seconds = (time.perf_counter_ns() - began_ns) / 1e9
        self._write(batch)
        return self._sample(batch)

    def _swap(self, copies: HostCopies) -> None:
        self.host_cells[copies.out_hosts] = self.cells[copies.out_sources]
        self.cells[copies.in_targets] = self.host_cells[copies.in_hosts]

    def _locate(self, batch: Batch, rows: I64, positions: I64) -> I64:
        """Flat cell of each (row, position), through the row's block table."""
        blocks, offsets = np.divmod(positions, self._block_size)
        return batch.table_blocks[batch.table_offsets[rows] + blocks].astype(np.int64) * self._block_size + offsets

    def _write(self, batch: Batch) -> None:
        rows = np.repeat(np.arange(len(batch.slots)), batch.counts)
        positions = ragged_positions(batch.starts, batch.counts)
        sums = np.cumsum(token_hashes(batch.tokens, positions), dtype=np.uint64)
        first = np.cumsum(batch.counts) - batch.counts
        before_row = np.concatenate((np.zeros(1, np.uint64), sums))[first]
        self._flat[self._locate(batch, rows, positions)] = sums + (self._previous(batch) - before_row)[rows]

    def _previous(self, batch: Batch) -> U64:
        """The cell before each row's first position, read back; 0 where a sequence begins."""
        rows = np.arange(len(batch.slots))
        cells = self._flat[self._locate(batch, rows, np.maximum(batch.starts, 1) - 1)]
        return np.where(batch.starts > 0, cells, np.uint64(0))

    def _sample(self, batch: Batch) -> I32:
        if not len(batch.sample_entry):
            return np.zeros(0, np.int32)
        lengths = (batch.starts + batch.counts)[batch.sample_entry]
        positions = ragged_positions(np.zeros_like(lengths), lengths)
        cells = self._flat[self._locate(batch, np.repeat(batch.sample_entry, lengths), positions)]
        hashes = np.add.reduceat(cell_hashes(cells, positions), np.cumsum(lengths) - lengths)
        return draw(hashes, batch.sample_seed, batch.sample_temperature, self._vocab_size)
