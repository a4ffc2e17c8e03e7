"""Live requests one by one: who holds what, shares what, and has waited for what. Never text or tokens of a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvledger.audit import Audit
from kvledger.clock import NS_PER_SECOND
from kvledger.snapshot import Sample
from kvledger.views import F64, I64
from kvledger.words import RequestState, WaitCause
from kvledger_agent.evidence import text
from kvledger_agent.observe_requests import class_names, tenant_names

_STATES = {int(state): state.word for state in RequestState}
_CAUSES = WaitCause.words()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One live request. Ages run to the ledger's now; `block_seconds` is its share of every block it has held."""

    serial: int
    parent_serial: int | None
    id_head: str
    id_tail: str
    tenant: str
    request_class: str
    state: str
    blocks: int
    shared_blocks: int
    peak_blocks: int
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int
    hit_tokens: int
    preemptions: int
    age_seconds: float
    wait_cause: str | None
    wait_seconds: dict[str, float]
    time_to_first_block_seconds: float | None
    time_to_first_token_seconds: float | None
    block_seconds: float


def request_rows(sample: Sample, audit: Audit) -> list[RequestRow]:
    """The live requests of a sample, oldest first. Blocks shared and block-seconds come from the audit."""
    slots, causes, waits = sample.slots, sample.wait_causes().tolist(), sample.wait_seconds()
    shared, seconds = _by_serial(audit, _shared_blocks(audit)), _by_serial(audit, _block_seconds(audit, sample.now_ns))
    tenants, classes = tenant_names(sample, slots.tenant), class_names(slots)
    blocks = slots.table_blocks.sum(axis=1).tolist()
    rows = [
        RequestRow(
            serial=(serial := int(slots.serial[i])),
            parent_serial=int(slots.parent_serial[i]) or None,
            id_head=text(slots.id_head[i]),
            id_tail=text(slots.id_tail[i]),
            tenant=tenants[i],
            request_class=classes[i],
            state=_STATES.get(int(slots.state[i]), "unknown"),
            blocks=blocks[i],
            shared_blocks=int(shared.get(serial, 0)),
            peak_blocks=int(slots.peak_blocks[i]),
            prompt_tokens=int(slots.prompt_tokens[i]),
            computed_tokens=int(slots.computed_tokens[i]),
            output_tokens=int(slots.output_tokens[i]),
            max_tokens=int(slots.max_tokens[i]),
            hit_tokens=int(slots.hit_tokens[i]),
            preemptions=int(slots.preemptions[i]),
            age_seconds=max(0.0, (sample.now_ns - int(slots.arrived_ns[i])) / NS_PER_SECOND),
            wait_cause=_CAUSES[causes[i]] if causes[i] >= 0 else None,
            wait_seconds={_CAUSES[c]: float(waits[i, c]) for c in np.flatnonzero(waits[i]).tolist()},
            time_to_first_block_seconds=_since(int(slots.first_block_ns[i]), int(slots.arrived_ns[i])),
            time_to_first_token_seconds=_since(int(slots.first_token_ns[i]), int(slots.arrived_ns[i])),
            block_seconds=float(seconds.get(serial, slots.block_seconds[i])),
        )
        for i in range(len(slots))
    ]
    return sorted(rows, key=lambda row: row.serial)


def _since(at_ns: int, began_ns: int) -> float | None:
    return max(0.0, (at_ns - began_ns) / NS_PER_SECOND) if at_ns > 0 else None


def _by_serial(audit: Audit, values: I64 | F64) -> dict[int, float]:
    return dict(zip(audit.slots.serial.tolist(), values.tolist(), strict=True))


def _per_request(audit: Audit, entries: I64 | F64) -> F64:
    """Sums over each request's table entries, all groups together."""
    sums = np.concatenate(([0.0], np.cumsum(entries, dtype=np.float64)))
    offsets = audit.tables.offsets[:: audit.tables.groups]
    summed: F64 = np.diff(sums[offsets])
    return summed


def _shared_blocks(audit: Audit) -> F64:
    named = audit.tables.blocks
    return _per_request(audit, ((named >= 0) & (audit.table_references[named] >= 2)).astype(np.int64))


def _block_seconds(audit: Audit, now_ns: int) -> F64:
    """Block-seconds given back, plus each held block's share clock now, less the clocks when it was attached."""
    since, clocks = audit.column("share_since_ns"), audit.column("share_clock")
    elapsed, counts = np.maximum(now_ns - since, 0) / NS_PER_SECOND, audit.column("ref_count")
    clocks_now = clocks + np.where(counts > 0, elapsed / np.maximum(counts, 1), 0.0)
    named = audit.tables.blocks
    held = _per_request(audit, np.where(named >= 0, clocks_now[named], 0.0))
    seconds: F64 = np.maximum(audit.slots.block_seconds + held - audit.slots.share_base, 0.0)
    return seconds
