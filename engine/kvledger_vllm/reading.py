"""What vLLM's blocks and tables say of themselves, as numbers. Ledger block i is vLLM's block i + 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

QUEUED, FOUND = 2, 1


def code_of(block: Any) -> int:
    """References times four, and where a block is: 2 in the free queue, 1 more if it can be found by its content.

    Of a block that is in no queue it does not matter whether it can be found.
    """
    references: int = block.ref_cnt << 2
    if block.next_free_block is None:
        return references
    return references | (QUEUED | FOUND if block.block_hash is not None else QUEUED)


def codes_of(blocks: Iterable[Any]) -> list[int]:
    """`code_of` of each, without a call for each."""
    return [
        (b.ref_cnt << 2) | (b.next_free_block is not None and (3 if b.block_hash is not None else 2)) for b in blocks
    ]


def ledger_blocks(blocks: Iterable[Any], pool: Any) -> list[int]:
    """Ledger numbers of vLLM blocks, in order, without null blocks and blocks of other pools."""
    return [
        block.block_id - 1
        for block in blocks
        if not block.is_null and getattr(block, "pool", pool) in (pool, None)
    ]  # fmt: skip
