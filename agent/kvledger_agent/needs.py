"""How many blocks token counts need, over all cache groups of a pool. Pure arithmetic on arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.limits import Group, Limits

I64 = NDArray[np.int64]


def blocks_of_group(group: Group, tokens: I64) -> I64:
    """Blocks that sequences of `tokens` hold in one group: sinks, and whole blocks from the window on."""
    held: I64 = -(-tokens // group.block_size_tokens) - blocks_dropped(group, tokens)
    return held


def blocks_dropped(group: Group, tokens: I64) -> I64:
    """Blocks of sequences with `tokens` stored that lie between the group's sinks, whole blocks, and its window.

    As `kvledger.geometry.LayerGroup.tokens_held` counts.
    """
    if group.window_tokens <= 0:
        return np.zeros_like(tokens)
    before = np.maximum(tokens - group.window_tokens, 0) // group.block_size_tokens
    dropped: I64 = np.maximum(before - -(-group.sink_tokens // group.block_size_tokens), 0)
    return dropped


def blocks_of(limits: Limits, tokens: I64) -> I64:
    """Blocks that sequences of `tokens` hold in all groups together."""
    total = np.zeros(len(tokens), np.int64)
    for group in limits.groups:
        total += blocks_of_group(group, tokens)
    return total


def longest_tokens(limits: Limits, prompt_tokens: NDArray[np.int32], max_tokens: NDArray[np.int32]) -> I64:
    """The most tokens requests may come to hold: prompt and all they may generate, within the context limit."""
    total = np.maximum(prompt_tokens.astype(np.int64), 0) + np.maximum(max_tokens.astype(np.int64), 0)
    return np.minimum(total, limits.max_model_len_tokens) if limits.max_model_len_tokens > 0 else total
