"""Windows: which blocks of each cache group a sequence still needs, and the most it ever holds. Takes no block.

Owns how many blocks of each table have left its window. Group g of slot s has table s × groups + g, as in the ledger.
"""

from __future__ import annotations

import numpy as np

from kvledger.limits import Group, Limits
from kvledger.views import I32, I64
from kvledger_engine.errors import BadConfig
from kvledger_engine.ids import Integers

MANY_BLOCKS = 1 << 40
"""More than any pool has."""


class Windows:
    """The cache groups of one pool. `slide` says whether any of them has a window.

    `skipped` I32[max_requests × groups] counts the blocks of each sequence that its table has no more: those at its
    front, behind the `sink_blocks` of the group where there are any.
    Raises `BadConfig` for groups that cannot draw on one pool.
    """

    def __init__(self, limits: Limits, skipped: I32) -> None:
        groups = limits.groups
        self.count, self._size = len(groups), groups[0].block_size_tokens
        self._check(groups)
        self.window_tokens = tuple(group.window_tokens for group in groups)
        self.slide = any(self.window_tokens)
        self.plain = self.count == 1 and not self.slide
        self.skipped = skipped
        self.sink_blocks: I64 = np.array([group.sink_tokens // self._size for group in groups], np.int64)
        self._widths = np.array(self.window_tokens, np.int64)
        self._most_held = np.array([most_held(group, limits.max_num_batched_tokens) for group in groups])
        self._numbers = np.arange(self.count)

    def _check(self, groups: tuple[Group, ...]) -> None:
        if len({(group.block_size_tokens, group.block_bytes) for group in groups}) > 1:
            sizes = ", ".join(f"{g.block_size_tokens} tokens in {g.block_bytes} bytes" for g in groups)
            raise BadConfig(f"groups with blocks of {sizes}: groups of one pool need blocks of one size")
        if groups[0].window_tokens and not all(group.window_tokens for group in groups):
            raise BadConfig("groups[0] has a window and another has none: put one of full attention first")

    # -- numbers of tables ----------------------------------------------------------------------------------------

    def tables(self, slots: Integers) -> Integers:
        """The tables of each slot, one slot after the other."""
        if self.count == 1:
            return slots
        tables: Integers = (slots[:, None] * self.count + self._numbers).reshape(-1)
        return tables

    def each(self, values: Integers) -> Integers:
        """One value per slot, repeated for each of its tables."""
        return values if self.count == 1 else values.repeat(self.count)

    # -- what a sequence needs ------------------------------------------------------------------------------------

    def outside(self, tokens: Integers) -> I64:
        """Whole blocks between sinks and windows of sequences with so many tokens stored, [n, groups].

        As `kvledger.geometry.LayerGroup.tokens_held` counts: the last window_tokens of what is stored are kept.
        """
        before = np.maximum(tokens.astype(np.int64)[:, None] - self._widths, 0) // self._size
        return np.where(self._widths > 0, np.maximum(before - self.sink_blocks, 0), 0)

    def longest_usable(self, blocks: Integers) -> int:
        """The longest prefix, in blocks, of which every group has what lies in its window; `blocks` [n, groups].

        An entry of -1 is a block that is not to be had.
        """
        count = len(blocks)
        lacking = np.where(blocks < 0, np.arange(count)[:, None], -1)
        last = np.maximum.accumulate(lacking, axis=0)
        whole_sinks = np.logical_and.accumulate((lacking < 0) | (lacking >= self.sink_blocks), axis=0)
        outside = self.outside(np.arange(1, count + 1) * self._size)
        fits = np.all(whole_sinks & (last < self.sink_blocks + outside), axis=1)
        fitting = np.flatnonzero(fits)
        return int(fitting[-1]) + 1 if len(fitting) else 0

    def needed(self, lacking: Integers, tables: Integers) -> Integers:
        """Blocks slots take until each of their tables has `lacking` more; `tables` [slots, groups] are their lengths.

        A table with a window holds no more than the window and one step at any time.
        """
        if not self.slide:
            return lacking * lacking.dtype.type(self.count)
        room = np.maximum(self._most_held - tables, 0)
        needed: Integers = np.minimum(lacking[:, None], room).sum(axis=1)
        return needed.astype(lacking.dtype)

    def blocks_beyond(self, hit_tokens: int, tokens: int) -> int:
        """Blocks a sequence that begins with so many cached tokens takes to hold all of them."""
        tokens_held = np.array([hit_tokens])
        begun = -(-tokens_held // self._size)
        lacking = -(-tokens // self._size) - begun
        return int(self.needed(lacking, begun[:, None] - self.outside(tokens_held))[0])


def most_held(group: Group, step_tokens: int) -> int:
    """The most blocks a sequence holds in a group with a window while a step computes `step_tokens`.

    They are the sinks, the window of the step's first token, and the step's tokens. Without a window, or a bound on
    the step (0), there is no most: MANY_BLOCKS.
    """
    if not (group.window_tokens and step_tokens):
        return MANY_BLOCKS
    return -(-(group.sink_tokens + group.window_tokens + step_tokens) // group.block_size_tokens) + 1


def most_blocks(
    groups: tuple[Group, ...], tokens: int, step_tokens: int, *, sequences: int = 1, shared_tokens: int = 0
) -> int:
    """The most blocks that sequences hold together on their way to `tokens` each, `step_tokens` a step at most.

    They share the full blocks of their first `shared_tokens`, and nothing else.
    """
    total = 0
    for group in groups:
        shared = shared_tokens // group.block_size_tokens
        alone = -(-tokens // group.block_size_tokens) - shared
        total += min(shared + sequences * alone, sequences * most_held(group, step_tokens))
    return total
