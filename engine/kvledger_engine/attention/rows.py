"""DecodeRows: the rows of a step with a single query, as a kernel reads them. Made once a step, for all layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """r rows of one query each, over block tables laid one after the other.

    Position p of row i lies in block `blocks[bases[i] + p // block_size_tokens]`; `contexts[i]` counts the positions up
    to the query's own, itself included. All int32, `blocks` of any length and the others [r]. A query sees the last
    `window_tokens` positions, 0 = all of them; what lies before need not be in the table.
    """

    blocks: Tensor
    bases: Tensor
    contexts: Tensor
    longest_tokens: int
    window_tokens: int = 0
