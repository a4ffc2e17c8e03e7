"""Every block as one coloured cell. Pure: arrays in, arrays out; blocks the pool does not have are `OUTSIDE`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger_agent.client import BlockArrays
from kvledger_dashboards.explorer.views.text import UNKNOWN, count, duration

KINDS = ("free", "cached", "private", "shared", "pinned", "leaked", "finding")
LABELS: Mapping[str, str] = {
    "free": "free",
    "cached": "cached",
    "private": "active, one table",
    "shared": "active, shared",
    "pinned": "pinned",
    "leaked": "leaked",
    "finding": "other finding",
}
OUTSIDE = len(KINDS)
WIDTHS = (16, 32, 64, 128, 256, 512)
HOVER_LIMIT_BLOCKS = 20_000
LEAK = "excess_reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """`cells` (rows × columns, uint8): an index of `KINDS`, or `OUTSIDE`. Block `b` is cell `divmod(b, columns)`.

    `counts` is by kind. `unlocated_blocks` are in a finding that doesn't list them; None: nothing audits the engine.
    `details` (rows × columns × 3): block id, owner's serial, references; None for pools of more than
    `HOVER_LIMIT_BLOCKS` blocks, where they would be most of what is sent.
    """

    cells: NDArray[np.uint8]
    columns: int
    counts: Mapping[str, int]
    unlocated_blocks: int | None
    details: NDArray[Any] | None
    consistent: bool
    published_seq: int


def block_map(
    blocks: BlockArrays, *, pins: Iterable[Mapping[str, Any]], findings: Iterable[Mapping[str, Any]] | None
) -> BlockMap:
    """The map of one look. `pins` and `findings` are rows of the agent's documents, taken at about the same time."""
    kinds = _kinds(blocks, pins)
    unlocated = None if findings is None else _mark_findings(kinds, findings)
    columns = columns_of(blocks.capacity_blocks)
    tallied = np.bincount(kinds, minlength=len(KINDS))
    return BlockMap(
        cells=_grid(kinds, columns, OUTSIDE),
        columns=columns,
        counts={kind: int(tallied[number]) for number, kind in enumerate(KINDS)},
        unlocated_blocks=unlocated,
        details=_details(blocks, columns) if blocks.capacity_blocks <= HOVER_LIMIT_BLOCKS else None,
        consistent=blocks.consistent,
        published_seq=blocks.published_seq,
    )


def columns_of(capacity_blocks: int) -> int:
    """Cells in a row: a power of two that makes the map two to three times as wide as high, up to a width of 512."""
    wanted = math.sqrt(2.5 * max(1, capacity_blocks))
    return min(WIDTHS, key=lambda width: abs(math.log2(width / wanted)))


def _kinds(blocks: BlockArrays, pins: Iterable[Mapping[str, Any]]) -> NDArray[np.uint8]:
    """Kinds without the findings: a pin outranks sharing, and a pin's reference is no table's."""
    capacity = blocks.capacity_blocks
    pinned = np.array([pin["block"] for pin in pins if 0 <= pin["block"] < capacity], np.int64)
    by_tables = blocks.ref_count - np.bincount(pinned, minlength=capacity).astype(np.int32)
    numbers = {word: number for number, word in enumerate(blocks.states)}
    kinds = np.full(capacity, KINDS.index("free"), np.uint8)
    kinds[blocks.state == numbers.get("cached", -1)] = KINDS.index("cached")
    active = blocks.state == numbers.get("active", -1)
    kinds[active] = KINDS.index("private")
    kinds[active & (by_tables >= 2)] = KINDS.index("shared")
    kinds[pinned] = KINDS.index("pinned")
    return kinds


def _mark_findings(kinds: NDArray[np.uint8], findings: Iterable[Mapping[str, Any]]) -> int:
    """Mark the blocks that findings list, leaks last; how many more they speak of."""
    unlocated = 0
    for finding in sorted(findings, key=lambda finding: finding["kind"] == LEAK):
        listed = [block for block in finding["blocks"] if 0 <= block < len(kinds)]
        kinds[listed] = KINDS.index("leaked" if finding["kind"] == LEAK else "finding")
        unlocated += max(0, (finding["block_count"] or 0) - len(finding["blocks"])) if finding["blocks"] else 0
    return unlocated


def _grid(values: NDArray[Any], columns: int, padding: int) -> NDArray[Any]:
    rows = max(1, -(-len(values) // columns))
    grid = np.full(rows * columns, padding, values.dtype)
    grid[: len(values)] = values
    return grid.reshape(rows, columns)


def _details(blocks: BlockArrays, columns: int) -> NDArray[Any]:
    """Typed arrays end at 32 bits: greater serials become float64, which carries them exactly up to 2**53."""
    kind = np.uint32 if blocks.owner.max(initial=0) < 1 << 32 else np.float64
    layers = (np.arange(blocks.capacity_blocks), blocks.owner, np.maximum(blocks.ref_count, 0))
    return np.stack([_grid(layer.astype(kind), columns, 0) for layer in layers], axis=-1)


def block_facts(row: Mapping[str, Any], pins: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """One block's row as names and values for people."""
    holders = [f"{pin['kind']} by {pin['holder']}" for pin in pins if pin["block"] == row["block"]]
    owner = row["owner"]
    return [
        ("state", str(row["state"])),
        ("references", count(row["ref_count"])),
        ("of live tables", count(row["table_references"])),
        ("of pins", ", ".join(holders) or count(row["pin_references"])),
        ("allocated by request", "nobody" if owner is None else f"serial {owner}"),
        ("allocated", f"{duration(row['age_seconds'])} ago" if row["age_seconds"] is not None else UNKNOWN),
        ("tokens in it", count(row["filled_tokens"])),
        ("in the prefix index", "yes" if row["indexed"] else "no"),
    ]
