"""Prompts of the Mooncake trace with tokens made of its hash ids: equal ids give equal tokens, always the same ones.

An id stands for 512 tokens and for all that came before. The last token of a prompt is nobody else's, as a question at
the end of a known conversation is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from bench.errors import BenchError
from kvledger.views import I32
from kvledger_agent.load.traces import MOONCAKE_BLOCK_TOKENS, TraceRow, read_trace

VOCABULARY = 32_000
_ODD = np.uint64(0x9E3779B97F4A7C15)


def read(path: Path, most: int | None = None) -> list[TraceRow]:
    """The first `most` requests, by time. Raises `BenchError` for a trace that has no hash ids."""
    rows = list(islice(read_trace(path).rows, most))
    if any(row.hash_ids is None or len(row.hash_ids) * MOONCAKE_BLOCK_TOKENS < row.prompt_tokens for row in rows):
        raise BenchError(f"{path.name} has requests without a hash id for every {MOONCAKE_BLOCK_TOKENS} tokens")
    return rows


def prompts(rows: list[TraceRow]) -> Iterator[I32]:
    """The tokens of each request's prompt."""
    within = np.arange(MOONCAKE_BLOCK_TOKENS, dtype=np.uint64)
    for serial, row in enumerate(rows):
        ids = np.array(row.hash_ids, np.uint64)[:, None] * np.uint64(MOONCAKE_BLOCK_TOKENS) + within
        # A multiplicative hash: the upper bits of the product depend on all bits of the position.
        spread = (ids + np.uint64(1)) * _ODD >> np.uint64(33)
        tokens: I32 = (spread % np.uint64(VOCABULARY)).astype(np.int32).reshape(-1)[: row.prompt_tokens]
        tokens[-1] = VOCABULARY + serial
        yield tokens
