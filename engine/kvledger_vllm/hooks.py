"""The hooks in one scheduler: wrappers put on the objects themselves, which only note, and publish at the outermost.

Nothing of vLLM's classes is changed, and taking a hook out is deleting an attribute. A wrapper first does what it
wraps, with its arguments and its result, and lets its errors pass.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from kvledger.writer import Ledger
from kvledger_vllm.notes import Notes
from kvledger_vllm.publication import Entry, Publisher
from kvledger_vllm.switch import Switch

Function = Callable[..., Any]
_now = time.monotonic_ns


class Hooks:
    """All wrappers of one scheduler."""

    def __init__(self, scheduler: Any, notes: Notes, publisher: Publisher, switch: Switch, ledger: Ledger) -> None:
        self._scheduler, self._notes, self._publisher = scheduler, notes, publisher
        self._switch, self._ledger = switch, ledger
        self._inside = False
        self._asked_ns = 0
        self._put: list[tuple[Any, str]] = []

    def put_in(self) -> None:
        """Wrap everything that changes blocks, tables or requests; then publish the scheduler as it is."""
        self._wrap_requests()
        self._wrap_pool()
        self._wrap_tables()
        # Last, so that an entry point's publication comes after everything that was noted in it.
        self._wrap_entries()
        self._publisher.publish(Entry.OTHER, _now(), _now())

    def remove(self) -> None:
        """Take every wrapper out: the objects are what they were."""
        for owner, name in self._put:
            owner.__dict__.pop(name, None)
        self._put.clear()
        self._notes.clear()

    def _wrap(self, owner: Any, name: str, wrapper: Callable[[Function], Function]) -> None:
        """Put a wrapper before an object's method, if it has that."""
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, wrapper(original))
            self._put.append((owner, name))

    # -- entry points: a publication each -------------------------------------------------------------------------

    def _wrap_entries(self) -> None:
        scheduler = self._scheduler
        self._wrap(scheduler, "schedule", self._schedule)
        self._wrap(scheduler, "update_from_output", self._update)
        for name in ("add_request", "finish_requests", "reset_prefix_cache", "set_pause_state"):
            self._wrap(scheduler, name, self._entry)
        self._wrap(scheduler, "shutdown", self._shutdown)

    def _entry(self, original: Function) -> Function:
        def entry(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            began = self._asked_ns = self._enter()
            try:
                return original(*args, **kwargs)
            finally:
                self._asked_ns = 0
                self._leave(Entry.OTHER, began)

        return entry

    def _schedule(self, original: Function) -> Function:
        def schedule(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            began = self._enter()
            try:
                output = original(*args, **kwargs)
            except BaseException:
                self._inside = False
                raise
            throttled = bool(args[0] if args else kwargs.get("throttle_prefills", False))
            self._leave(Entry.SCHEDULE, began, output, throttled)
            return output

        return schedule

    def _update(self, original: Function) -> Function:
        def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(scheduler_output, *args, **kwargs)
            began = self._enter()
            try:
                outputs = original(scheduler_output, *args, **kwargs)
            except BaseException:
                self._inside = False
                raise
            self._leave(Entry.UPDATE, began, scheduler_output)
            return outputs

        return update_from_output

    def _enter(self) -> int:
        self._inside = True
        return _now()

    def _leave(self, kind: Entry, began: int, output: Any = None, throttled: bool = False) -> None:
        self._inside = False
        if not self._switch.on:
            return
        try:
            self._publisher.publish(kind, began, _now(), output, throttled)
        except Exception as error:  # noqa: BLE001 - the switch is where it ends
            self._switch.fail(error)

    def _shutdown(self, original: Function) -> Function:
        def shutdown(*args: Any, **kwargs: Any) -> Any:
            self.stop()
            return original(*args, **kwargs)

        return shutdown

    def stop(self) -> None:
        """The engine core goes down: leave the ledger behind. vLLM comes here on the way out of an error, too."""
        error = sys.exc_info()[1]
        clean = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        self._switch.run(lambda: self._close(clean))

    def _close(self, clean: bool) -> None:
        self.remove()
        self._ledger.close(clean=clean)

    # -- requests -------------------------------------------------------------------------------------------------

    def _wrap_requests(self) -> None:
        scheduler = self._scheduler
        self._wrap(scheduler, "add_request", self._adding)
        self._wrap(scheduler, "finish_requests", self._finishing)
        self._wrap(scheduler, "_preempt_request", self._preempting)
        self._wrap(scheduler, "_free_request", self._freeing)
        self._wrap(scheduler, "_free_blocks", self._freed)
        self._wrap(scheduler, "_free_cow_retained_blocks", self._retaining)

    def _adding(self, original: Function) -> Function:
        arrived, requests = self._notes.arrived, self._scheduler.requests

        def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            known = request.request_id in requests
            if not known:
                arrived.append(request)
            return original(request, *args, **kwargs)

        return add_request

    def _finishing(self, original: Function) -> Function:
        def finish_requests(request_ids: Any, *args: Any, **kwargs: Any) -> Any:
            self._notes.cancelled_by_engine = request_ids is None
            return original(request_ids, *args, **kwargs)

        return finish_requests

    def _preempting(self, original: Function) -> Function:
        notes = self._notes

        def preempt_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            computed = request.num_computed_tokens
            result = original(request, *args, **kwargs)
            notes.preempted.append((request, computed))
            notes.dirty.add(request.request_id)
            return result

        return preempt_request

    def _freeing(self, original: Function) -> Function:
        ending = self._notes.ending

        def free_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            ending.append((request, self._asked_ns or _now()))
            return original(request, *args, **kwargs)

        return free_request

    def _freed(self, original: Function) -> Function:
        notes = self._notes

        def free_blocks(request: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(request, *args, **kwargs)
            notes.freed[request.request_id] = _now()
            notes.dirty.add(request.request_id)
            return result

        return free_blocks

    def _retaining(self, original: Function) -> Function:
        copied, deferred = self._notes.copied, getattr(self._scheduler, "deferred_frees", None)

        def free_cow_retained_blocks(*args: Any, **kwargs: Any) -> Any:
            before = len(deferred) if deferred is not None else 0
            result = original(*args, **kwargs)
            if deferred is not None and len(deferred) > before:
                copied.append(deferred[-1])
            return result

        return free_cow_retained_blocks

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _wrap_pool(self) -> None:
        pool = self._scheduler.kv_cache_manager.block_pool
        self._wrap(pool, "get_new_blocks", self._getting)
        self._wrap(pool, "_maybe_evict_cached_block", self._evicting)
        self._wrap(pool, "reset_prefix_cache", self._resetting)
        for name in ("touch", "free_blocks", "unpin_blocks"):
            self._wrap(pool, name, self._touching)
        self._wrap(pool, "evict_blocks", self._evicting_ids)
        self._wrap(pool, "move_block_hashes", self._moving)

    def _getting(self, original: Function) -> Function:
        touched, fresh = self._notes.touched, self._notes.fresh

        def get_new_blocks(*args: Any, **kwargs: Any) -> Any:
            blocks = original(*args, **kwargs)
            touched.extend(blocks)
            fresh.extend(blocks)
            return blocks

        return get_new_blocks

    def _evicting(self, original: Function) -> Function:
        notes = self._notes

        def maybe_evict_cached_block(*args: Any, **kwargs: Any) -> Any:
            evicted = original(*args, **kwargs)
            if evicted:
                notes.evictions += 1
            return evicted

        return maybe_evict_cached_block

    def _resetting(self, original: Function) -> Function:
        def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
            self._notes.all_cached = True
            return original(*args, **kwargs)

        return reset_prefix_cache

    def _touching(self, original: Function) -> Function:
        touched = self._notes.touched

        def touch(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = list(blocks)  # vLLM gives iterators, too, and they can be gone through only once
            touched.extend(blocks)
            return original(blocks, *args, **kwargs)

        return touch

    def _evicting_ids(self, original: Function) -> Function:
        touched, pool = self._notes.touched, self._scheduler.kv_cache_manager.block_pool

        def evict_blocks(block_ids: Any, *args: Any, **kwargs: Any) -> Any:
            touched.extend(pool.blocks[block] for block in block_ids)
            return original(block_ids, *args, **kwargs)

        return evict_blocks

    def _moving(self, original: Function) -> Function:
        touched = self._notes.touched

        def move_block_hashes(src_block: Any, dst_block: Any, *args: Any, **kwargs: Any) -> Any:
            touched.extend((src_block, dst_block))
            return original(src_block, dst_block, *args, **kwargs)

        return move_block_hashes

    # -- tables ---------------------------------------------------------------------------------------------------

    def _wrap_tables(self) -> None:
        manager = self._scheduler.kv_cache_manager
        self._wrap(manager, "free", self._emptying)
        self._wrap(manager, "pop_blocks_for_free", self._popping)
        self._wrap(manager, "record_prefix_cache_stats", self._looking_up)
        self._wrap(manager.coordinator, "allocate_new_computed_blocks", self._holding)
        for group in manager.coordinator.single_type_managers:
            if type(group).__name__ != "FullAttentionManager":
                # Its tables do not only grow: whoever frees or takes blocks within one is compared as a whole.
                for name in ("remove_skipped_blocks", "allocate_new_blocks"):
                    self._wrap(group, name, self._rearranging)

    def _emptying(self, original: Function) -> Function:
        dirty = self._notes.dirty

        def free(request: Any, *args: Any, **kwargs: Any) -> Any:
            dirty.add(request.request_id)
            return original(request, *args, **kwargs)

        return free

    def _popping(self, original: Function) -> Function:
        notes = self._notes

        def pop_blocks_for_free(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = original(request, *args, **kwargs)
            notes.dirty.add(request.request_id)
            notes.popped.append((blocks, request.request_id))
            return blocks

        return pop_blocks_for_free

    def _looking_up(self, original: Function) -> Function:
        hits = self._notes.hits

        def record_prefix_cache_stats(request: Any, num_hits: int, *args: Any, **kwargs: Any) -> Any:
            hits.append((request, num_hits))
            return original(request, num_hits, *args, **kwargs)

        return record_prefix_cache_stats

    def _holding(self, original: Function) -> Function:
        dirty = self._notes.dirty

        def allocate_new_computed_blocks(*args: Any, **kwargs: Any) -> Any:
            dirty.add(kwargs["request_id"] if "request_id" in kwargs else args[0])
            return original(*args, **kwargs)

        return allocate_new_computed_blocks

    def _rearranging(self, original: Function) -> Function:
        touched, dirty = self._notes.touched, self._notes.dirty

        def rearrange(request_id: str, *args: Any, **kwargs: Any) -> Any:
            before = len(touched)
            result = original(request_id, *args, **kwargs)
            if len(touched) != before:
                dirty.add(request_id)
            return result

        return rearrange
