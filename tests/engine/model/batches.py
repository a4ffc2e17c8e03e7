"""Batches made by hand, without an engine around them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kvledger_engine.batch import Batch, GroupTables


def batch(rows: Sequence[tuple[int, int]], *, block_size_tokens: int = 4, **fields: Any) -> Batch:
    """A batch of (start, count) rows, each with scattered blocks of its own and one greedy sample.

    `fields` are fields of the batch and replace what is made up here.
    """
    starts, counts = (np.array([row[side] for row in rows], np.int32) for side in (0, 1))
    blocks = -(-(starts + counts) // block_size_tokens)
    ordinals = np.arange(len(rows), dtype=np.int32)
    none = np.zeros(0, np.int32)
    given: dict[str, Any] = {
        "block_size_tokens": block_size_tokens,
        "slots": ordinals,
        "starts": starts,
        "counts": counts,
        "tokens": np.arange(counts.sum(), dtype=np.int32) % 64,
        "table_blocks": np.random.default_rng(3).permutation(int(blocks.sum())).astype(np.int32),
        "table_offsets": np.concatenate(([0], np.cumsum(blocks))).astype(np.int32),
        "copy_source": none,
        "copy_target": none,
        "sample_entry": ordinals,
        "sample_slots": ordinals,
        "sample_seed": np.zeros(len(rows), np.uint64),
        "sample_temperature": np.zeros(len(rows), np.float32),
    }
    return Batch(**(given | fields))


def windowed(
    rows: Sequence[tuple[int, int]], window_tokens: int, *, block_size_tokens: int = 4, sink_blocks: int = 0
) -> Batch:
    """A batch whose tables have lost what lay between sinks and window when its rows began; 0 = full attention."""
    whole = batch(rows, block_size_tokens=block_size_tokens)
    if not window_tokens:
        return whole
    skipped = np.maximum(np.maximum(whole.starts - window_tokens, 0) // block_size_tokens - sink_blocks, 0)
    tables = [whole.table_blocks[a:b] for a, b in pairwise(whole.table_offsets.tolist())]
    kept = [
        np.delete(table, slice(sink_blocks, sink_blocks + gap))
        for table, gap in zip(tables, skipped.tolist(), strict=True)
    ]
    group = GroupTables(
        blocks=np.concatenate(kept),
        offsets=np.concatenate(([0], np.cumsum([len(table) for table in kept]))).astype(np.int32),
        skipped=skipped.astype(np.int32),
        window_tokens=window_tokens,
        sink_tokens=sink_blocks * block_size_tokens,
    )
    return batch(rows, block_size_tokens=block_size_tokens, groups=(group,))
