"""What vLLM's blocks and tables say of themselves, as numbers. Ledger block i is vLLM's block i + 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def code_of(block: Any) -> int:
    """References times four, and where a block is: 2 in the free queue, 1 more if it can be found by its content."""
    references: int = block.ref_cnt << 2
    if block.next_free_block is None:
        return references
    return references | (3 if block.block_hash is not None else 2)


def ledger_blocks(blocks: Iterable[Any], pool: Any) -> list[int]:
    """Ledger numbers of vLLM blocks, in order, without null blocks and blocks of other pools."""
    return [
        block.block_id - 1
        for block in blocks
        if not block.is_null and getattr(block, "pool", pool) in (pool, None)
    ]  # fmt: skip
