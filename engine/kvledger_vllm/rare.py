"""What few publications have to say: who came, was admitted or preempted, or ended; whole tables; pins; why one waits.

Each by its name, and only what there is:

- `arrived`: (request id, tenant, prompt tokens, most tokens to generate, when the server took it in)
- `admitted`: (request id, tokens computed, tokens generated), both after the schedule
- `hits`: (request id, prefix tokens found, tokens looked up; 0 for one that was preempted, which vLLM does not count)
- `preempted`: (request id, tokens it had computed)
- `ending`: (request id, vLLM's status, when it was told to end, tokens generated); `by_engine`: all were told to
- `freed`: request id -> when it gave everything back
- `tables`: request id -> its blocks by cache group, of requests whose tables may have changed in any way
- `touched`: rows of blocks that may have changed; `pool`: the codes of all blocks
- `gone`, `deferred_frees`: keys of deferred frees that are over, and (key, whether it ends a copy, request id, blocks)
- `pinned`: rows of blocks and how many references of its own a KV connector took, or gave back if negative
- `deferred`: ids of requests that the schedule passed over; `cause`: why the queue's head waits; `paused`
"""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from kvledger.clock import NS_PER_SECOND
from kvledger_vllm.causes import head_cause, is_paused
from kvledger_vllm.message import OTHER, SCHEDULE
from kvledger_vllm.notes import Notes
from kvledger_vllm.reading import code_of, codes_of, ledger_blocks
from kvledger_vllm.tenants import tenant_of

_LONGEST_WAY_NS = 600_000_000_000


class Rare:
    """Says the notes of one scheduler, as plain values, and empties them."""

    def __init__(self, scheduler: Any, notes: Notes) -> None:
        self._scheduler, self._notes = scheduler, notes
        self._pool = scheduler.kv_cache_manager.block_pool
        self._managers = tuple(scheduler.kv_cache_manager.coordinator.single_type_managers)
        self._deferred_frees = getattr(scheduler, "deferred_frees", None)
        self._keys = count(1)
        self._entries: dict[int, tuple[int, Any]] = {}
        """id of a deferred free -> the key it goes by, and itself, which keeps that id its own."""
        self._whole = False

    def want_all(self) -> None:
        """The next message says everything there is, whatever was said before."""
        notes, requests = self._notes, self._scheduler.requests
        notes.arrived[:] = requests.values()
        notes.dirty.update(requests)
        notes.all_cached = self._whole = True

    def collect(self, kind: int, output: Any, throttled: bool) -> dict[str, Any]:
        """Everything that was noted, and what a schedule or another entry point says besides."""
        notes = self._notes
        said: dict[str, Any] = {}
        if notes.arrived:
            said["arrived"] = [self._arrival(request) for request in notes.arrived]
        if kind == SCHEDULE:
            self._admitted(said, output)
        elif self._whole:
            self._tell(said, [request.request_id for request in self._scheduler.running])
        self._whole = False
        if notes.ended_inside or notes.ending or notes.preempted or notes.freed:
            self._left(said)
        if notes.dirty:
            said["tables"] = {i: [self._table(m, i) for m in self._managers] for i in notes.dirty}
        self._blocks(said)
        self._pins(said)
        self._waiting(said, kind, output, throttled)
        notes.clear()
        return said

    def _arrival(self, request: Any) -> tuple[Any, ...]:
        """With the time when the server took the request in: its wall clock says how long ago that was."""
        ago = int((time.time() - request.arrival_time) * NS_PER_SECOND)
        arrived_ns = time.monotonic_ns() - min(max(ago, 0), _LONGEST_WAY_NS)
        tokens = int(request.num_prompt_tokens), int(request.max_tokens)
        return request.request_id, tenant_of(request), *tokens, arrived_ns

    def _admitted(self, said: dict[str, Any], output: Any) -> None:
        ids = [data.req_id for data in output.scheduled_new_reqs]
        ids += output.scheduled_cached_reqs.resumed_req_ids
        if self._whole:
            ids = [request.request_id for request in self._scheduler.running]
        if ids:
            self._notes.dirty.update(ids)
            self._tell(said, ids)
        hits = [(r.request_id, int(n), 0 if r.num_preemptions else int(r.num_tokens)) for r, n in self._notes.hits]
        if hits:
            said["hits"] = hits

    def _tell(self, said: dict[str, Any], ids: list[str]) -> None:
        requests = self._scheduler.requests
        said["admitted"] = [(i, requests[i].num_computed_tokens, requests[i].num_output_tokens) for i in ids]

    def _left(self, said: dict[str, Any]) -> None:
        notes = self._notes
        if notes.preempted:
            said["preempted"] = [(request.request_id, computed) for request, computed in notes.preempted]
        if notes.ending:
            said["ending"] = [
                (request.request_id, request.status.name, told_ns, getattr(request, "num_output_tokens", 0))
                for request, told_ns in notes.ending
            ]
            said["by_engine"] = notes.cancelled_by_engine
            notes.dirty.update([request.request_id for request, _ in notes.ending])
        if notes.freed:
            said["freed"] = dict(notes.freed)

    def _table(self, manager: Any, request_id: str) -> list[int]:
        return ledger_blocks(manager.req_to_blocks.get(request_id, ()), self._pool)

    def _blocks(self, said: dict[str, Any]) -> None:
        notes, pool = self._notes, self._pool
        if notes.all_cached:
            said["pool"] = codes_of(pool.blocks[1:])
        elif notes.touched:
            rows: list[int] = []
            for block in notes.touched:
                if block.block_id and getattr(block, "pool", pool) in (pool, None):
                    rows += (block.block_id - 1, code_of(block))
            said["touched"] = rows

    def _pins(self, said: dict[str, Any]) -> None:
        changes: dict[int, int] = {}
        for block, change in self._notes.pinned:
            for number in ledger_blocks((block,), self._pool):
                changes[number] = changes.get(number, 0) + change
        if pinned := [value for row in changes.items() if row[1] for value in row]:
            said["pinned"] = pinned
        if not self._deferred_frees and not self._entries:
            return
        present = {id(entry): entry for entry in self._deferred_frees or ()}
        gone = [i for i in self._entries if i not in present]
        if gone:
            said["gone"] = [self._entries.pop(i)[0] for i in gone]
        holders = {id(blocks): request_id for blocks, request_id in self._notes.popped}
        copied = {id(entry) for entry in self._notes.copied}
        new = []
        for i, entry in present.items():
            if i not in self._entries:
                key = next(self._keys)
                self._entries[i] = key, entry
                new.append((key, i in copied, holders.get(id(entry[1]), ""), ledger_blocks(entry[1], self._pool)))
        if new:
            said["deferred_frees"] = new

    def _waiting(self, said: dict[str, Any], kind: int, output: Any, throttled: bool) -> None:
        scheduler = self._scheduler
        if kind == OTHER and is_paused(scheduler):
            said["paused"] = True
        if kind != SCHEDULE or not (scheduler.waiting or getattr(scheduler, "kv_holding_waiting", None)):
            return
        if deferred := getattr(scheduler, "deferred_waiting", None):
            said["deferred"] = [request.request_id for request in deferred]
        preempted = bool(self._notes.preempted)
        said["cause"] = int(head_cause(scheduler, output, preempted=preempted, may_throttle=throttled))
