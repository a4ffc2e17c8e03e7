"""What happens in few publications: who came, went, was admitted or preempted, what is deferred, whole tables."""

from __future__ import annotations

import time
from typing import Any

from kvledger_vllm.causes import head_cause, is_paused
from kvledger_vllm.message import SCHEDULE
from kvledger_vllm.notes import Notes
from kvledger_vllm.reading import code_of, ledger_blocks
from kvledger_vllm.tenants import tenant_of

_NS_PER_SECOND = 1e9
_LONGEST_WAY_NS = 600_000_000_000


class Rare:
    """Takes the notes of one scheduler as plain values by name, and empties them."""

    def __init__(self, scheduler: Any, notes: Notes) -> None:
        self._scheduler, self._notes = scheduler, notes
        self._pool = scheduler.kv_cache_manager.block_pool
        self._managers = tuple(scheduler.kv_cache_manager.coordinator.single_type_managers)

    def note_all(self) -> None:
        pass

    def collect(self, kind: int, output: Any, throttled: bool) -> dict[str, Any]:
        notes, scheduler = self._notes, self._scheduler
        said: dict[str, Any] = {}
        if kind == SCHEDULE:
            admitted = [data.req_id for data in output.scheduled_new_reqs]
            admitted += output.scheduled_cached_reqs.resumed_req_ids
            if admitted:
                notes.dirty.update(admitted)
                requests = scheduler.requests
                said["admitted"] = [
                    (i, requests[i].num_computed_tokens, requests[i].num_output_tokens) for i in admitted
                ]
            if notes.hits:
                said["hits"] = [(r.request_id, n, r.num_tokens) for r, n in notes.hits if not r.num_preemptions]
            if scheduler.waiting:
                said["cause"] = int(
                    head_cause(scheduler, output, preempted=bool(notes.preempted), may_throttle=throttled)
                )
            if deferred := getattr(scheduler, "deferred_waiting", None):
                said["deferred"] = [r.request_id for r in deferred]
        if notes.arrived:
            said["arrived"] = [self._arrival(r) for r in notes.arrived]
        if notes.preempted:
            said["preempted"] = [(r.request_id, n) for r, n in notes.preempted]
        if notes.ending:
            said["ending"] = [
                (r.request_id, r.status.name, told, r.num_computed_tokens, r.num_output_tokens)
                for r, told in notes.ending
            ]
            notes.dirty.update([r.request_id for r, _ in notes.ending])
        if notes.freed:
            said["freed"] = dict(notes.freed)
        if notes.dirty:
            said["tables"] = {
                i: [ledger_blocks(m.req_to_blocks.get(i, ()), self._pool) for m in self._managers] for i in notes.dirty
            }
        if notes.touched:
            rows = []
            for b in notes.touched:
                rows += (b.block_id - 1, code_of(b))
            said["touched"] = rows
        notes.clear()
        return said

    def _arrival(self, request: Any) -> tuple[Any, ...]:
        ago = int((time.time() - request.arrival_time) * _NS_PER_SECOND)
        arrived = time.monotonic_ns() - min(max(ago, 0), _LONGEST_WAY_NS)
        return request.request_id, tenant_of(request), int(request.num_prompt_tokens), int(request.max_tokens), arrived
