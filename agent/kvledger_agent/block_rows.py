"""Blocks one by one, in pages, or all of them as compact arrays. Reads an audit; keeps nothing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.audit import Audit
from kvledger.clock import NS_PER_SECOND
from kvledger.views import I32
from kvledger.words import BlockState

MAX_PAGE = 10_000
_SHOWN = ("state", "ref_count", "owner", "filled_tokens", "allocated_ns", "index_slot", "changed_seq")
COMPACT = (("state", "<u1"), ("ref_count", "<i4"), ("owner", "<u8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockQuery:
    """Which blocks: of one state, allocated by one request (serial), and which page of them."""

    state: BlockState | None = None
    owner: int | None = None
    offset: int = 0
    limit: int = 1000


def block_page(audit: Audit, query: BlockQuery, *, now_ns: int) -> dict[str, Any]:
    """One page of blocks in order of their ids. `total` is how many match; `consistent` that no publication went on."""
    matching = _matching(audit, query)
    page = matching[query.offset : query.offset + min(query.limit, MAX_PAGE)]
    rows = _rows(audit, page, now_ns)
    return _head(audit) | {"total": len(matching), "offset": query.offset, "blocks": rows}


def compact_blocks(audit: Audit) -> dict[str, Any]:
    """Every block's state, reference count and owner as base64 of little-endian arrays."""
    arrays: dict[str, NDArray[Any]] = {name: audit.column(name) for name, _ in COMPACT}
    return _head(audit) | {
        "encoding": "base64",
        "states": BlockState.words(),
        "arrays": {
            name: {"type": kind, "data": base64.b64encode(arrays[name].astype(kind, copy=False).tobytes()).decode()}
            for name, kind in COMPACT
        },
    }


def _head(audit: Audit) -> dict[str, Any]:
    """To be called when all has been read."""
    return {
        "published_seq": audit.published_seq,
        "capacity_blocks": audit.capacity_blocks,
        "consistent": audit.quiescent,
    }


def _matching(audit: Audit, query: BlockQuery) -> I32:
    mask = np.ones(audit.capacity_blocks, np.bool_)
    if query.state is not None:
        mask &= audit.column("state") == query.state
    if query.owner is not None:
        mask &= audit.column("owner") == np.uint64(query.owner)
    return np.flatnonzero(mask).astype(np.int32)


def _rows(audit: Audit, page: I32, now_ns: int) -> list[dict[str, Any]]:
    words = {int(state): state.word for state in BlockState}
    columns = {name: audit.values(name, page).tolist() for name in _SHOWN}
    in_tables, in_pins = audit.table_references[page].tolist(), audit.pin_references[page].tolist()
    return [
        {
            "block": block,
            "state": words.get(columns["state"][i], "unknown"),
            "ref_count": columns["ref_count"][i],
            "table_references": in_tables[i],
            "pin_references": in_pins[i],
            "owner": (owner := columns["owner"][i]) or None,
            "filled_tokens": columns["filled_tokens"][i],
            "age_seconds": max(0.0, (now_ns - columns["allocated_ns"][i]) / NS_PER_SECOND) if owner else None,
            "indexed": columns["index_slot"][i] >= 0,
            "changed_seq": columns["changed_seq"][i],
        }
        for i, block in enumerate(page.tolist())
    ]
