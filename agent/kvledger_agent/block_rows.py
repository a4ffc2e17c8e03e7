"""Blocks one by one, in pages, or all of them as compact arrays. Reads an audit; keeps nothing."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.audit import Audit
from kvledger.views import I32
from kvledger.words import BlockState

MAX_PAGE = 10_000
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
    owners = audit.column("owner")
    matching = _matching(audit, owners, query)
    page = matching[query.offset : query.offset + min(query.limit, MAX_PAGE)]
    return _head(audit) | {
        "total": len(matching),
        "offset": query.offset,
        "blocks": _rows(audit, owners, page, now_ns),
    }


def compact_blocks(audit: Audit) -> dict[str, Any]:
    """Every block's state, reference count and owner as base64 of little-endian arrays."""
    arrays: dict[str, NDArray[Any]] = {
        "state": audit.state,
        "ref_count": audit.ref_count,
        "owner": audit.column("owner"),
    }
    return _head(audit) | {
        "encoding": "base64",
        "states": BlockState.words(),
        "arrays": {
            name: {"type": kind, "data": base64.b64encode(arrays[name].astype(kind, copy=False).tobytes()).decode()}
            for name, kind in COMPACT
        },
    }


def _head(audit: Audit) -> dict[str, Any]:
    return {
        "published_seq": audit.published_seq,
        "capacity_blocks": audit.capacity_blocks,
        "consistent": audit.quiescent,
    }


def _matching(audit: Audit, owners: NDArray[np.uint64], query: BlockQuery) -> I32:
    mask = np.ones(audit.capacity_blocks, np.bool_)
    if query.state is not None:
        mask &= audit.state == query.state
    if query.owner is not None:
        mask &= owners == np.uint64(query.owner)
    return np.flatnonzero(mask).astype(np.int32)


def _rows(audit: Audit, owners: NDArray[np.uint64], page: I32, now_ns: int) -> list[dict[str, Any]]:
    words = {int(state): state.word for state in BlockState}
    filled = audit.values("filled_tokens", page).tolist()
    allocated = audit.values("allocated_ns", page).tolist()
    changed = audit.values("changed_seq", page).tolist()
    return [
        {
            "block": block,
            "state": words.get(int(audit.state[block]), "unknown"),
            "ref_count": int(audit.ref_count[block]),
            "table_references": int(audit.table_references[block]),
            "pin_references": int(audit.pin_references[block]),
            "owner": int(owners[block]) or None,
            "filled_tokens": filled[i],
            "age_seconds": max(0.0, (now_ns - allocated[i]) / 1e9) if owners[block] else None,
            "indexed": bool(audit.index_slot[block] >= 0),
            "changed_seq": changed[i],
        }
        for i, block in enumerate(page.tolist())
    ]
