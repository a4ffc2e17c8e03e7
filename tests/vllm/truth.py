"""What a vLLM scheduler holds, read from its own objects, and the same read from the ledger: to be equal.

Neither side uses the instrument's code. Block numbers are vLLM's.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

from kvledger.audit import Audit
from kvledger.reader import Reader
from kvledger.words import RequestState, WaitCause

Counts = dict[str, Any]


def key(request_id: str) -> int:
    """A request id as the ledger knows it, whatever its length."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little")


def truth_of(scheduler: Any) -> Counts:
    """Blocks by state, references, tables, requests by state: everything of vLLM that a ledger shows as a number."""
    manager = scheduler.kv_cache_manager
    blocks = manager.block_pool.blocks[1:]
    managers = manager.coordinator.single_type_managers
    tables = {
        key(request_id): [
            [block.block_id for block in group.req_to_blocks.get(request_id, ()) if not block.is_null]
            for group in managers
        ]
        for request_id in scheduler.requests
    }
    waiting = [*scheduler.waiting, *getattr(scheduler, "kv_holding_waiting", ())]
    return {
        "references": {block.block_id: block.ref_cnt for block in blocks if block.ref_cnt},
        "active": sum(block.ref_cnt > 0 for block in blocks),
        "cached": sum(block.ref_cnt == 0 and block.block_hash is not None for block in blocks),
        "free": sum(block.ref_cnt == 0 and block.block_hash is None for block in blocks),
        "shared": sum(block.ref_cnt > 1 for block in blocks),
        "logical": sum(len(table) for of_request in tables.values() for table in of_request),
        "tables": tables,
        "running": len(scheduler.running),
        "waiting": len(waiting),
        "deferred": len(getattr(scheduler, "deferred_waiting", ())),
        "computed": {key(r.request_id): r.num_computed_tokens for r in scheduler.running},
        "output": {key(request_id): r.num_output_tokens for request_id, r in scheduler.requests.items()},
        "pinned": sum(len(blocks) for _, blocks in getattr(scheduler, "deferred_frees", ())),
    }


def ledger_counts(reader: Reader) -> Counts:
    """The same from a ledger, through the reader that everybody uses."""
    sample, audit = reader.sample(), reader.audit()
    names = sample.slots.id_hash.tolist()
    references = audit.column("ref_count").copy()
    running = sample.slots.state == int(RequestState.RUNNING)
    whole = sample.stats.whole
    return {
        "references": {int(b) + 1: int(references[b]) for b in np.flatnonzero(references)},
        "active": whole("active_blocks"),
        "cached": whole("cached_blocks"),
        "free": whole("free_blocks"),
        "shared": int(np.count_nonzero(references > 1)),
        "logical": int(sample.slots.table_blocks.sum()),
        "tables": _tables(audit, names),
        "running": whole("running"),
        "waiting": whole("waiting"),
        "deferred": int(np.count_nonzero(sample.wait_causes() == int(WaitCause.DEFERRED))),
        "computed": {n: c for n, c, r in zip(names, sample.slots.computed_tokens.tolist(), running, strict=True) if r},
        "output": dict(zip(names, sample.slots.output_tokens.tolist(), strict=True)),
        "pinned": len(sample.pins),
    }


def _tables(audit: Audit, names: list[int]) -> dict[int, list[list[int]]]:
    groups, offsets = audit.tables.groups, audit.tables.offsets.tolist()
    blocks = (audit.tables.blocks + 1).tolist()
    return {
        name: [blocks[offsets[t] : offsets[t + 1]] for t in range(row * groups, row * groups + groups)]
        for row, name in enumerate(names)
    }


def differences(engine: Counts, ledger: Counts) -> dict[str, tuple[Any, Any]]:
    """What is not equal: name -> (vLLM's, the ledger's)."""
    return {name: (engine[name], ledger[name]) for name in engine if engine[name] != ledger[name]}
