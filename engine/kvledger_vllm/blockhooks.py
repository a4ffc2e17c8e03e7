"""The hooks on vLLM's block pool and block tables: which blocks and whose tables may have changed. They only note."""

from __future__ import annotations

from functools import partial
from typing import Any

from kvledger_vllm.notes import Notes
from kvledger_vllm.switch import Switch
from kvledger_vllm.wrapping import Function, Wrappers

_OF_A_CONNECTOR = (
    "on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "update_connector_output", "request_finished", "request_finished_all_groups", "register_finished_partial_tail",
    "reset_cache",
)  # fmt: skip
"""Methods of a KV connector that the scheduler calls: references that blocks gain or lose in one are its own."""


class BlockHooks:
    """Wrappers of the pool, the cache manager and the managers of its groups."""

    def __init__(self, scheduler: Any, notes: Notes, wrappers: Wrappers, switch: Switch) -> None:
        self._manager, self._notes, self._wrappers = scheduler.kv_cache_manager, notes, wrappers
        self._switch, self._connector = switch, getattr(scheduler, "connector", None)
        self._pool = self._manager.block_pool

    def put_in(self) -> None:
        """Wrap everything that changes blocks or tables."""
        wrap, pool, manager = self._wrappers.wrap, self._pool, self._manager
        wrap(pool, "get_new_blocks", self._getting)
        wrap(pool, "reset_prefix_cache", self._resetting)
        for name, change in (("touch", 1), ("free_blocks", -1), ("unpin_blocks", -1)):
            wrap(pool, name, partial(self._touching, change))
        wrap(pool, "evict_blocks", self._evicting_ids)
        wrap(pool, "move_block_hashes", self._moving)
        wrap(manager, "free", self._emptying)
        wrap(manager, "pop_blocks_for_free", self._popping)
        wrap(manager, "record_prefix_cache_stats", self._looking_up)
        wrap(manager.coordinator, "allocate_new_computed_blocks", self._holding)
        for group in manager.coordinator.single_type_managers:
            if type(group).__name__ != "FullAttentionManager":
                # Its tables do not only grow: whoever frees or takes blocks within one is compared as a whole.
                for name in ("remove_skipped_blocks", "allocate_new_blocks"):
                    wrap(group, name, self._rearranging)
        if self._connector is not None:
            for name in _OF_A_CONNECTOR:
                wrap(self._connector, name, self._connecting)

    # -- the pool -------------------------------------------------------------------------------------------------

    def _getting(self, original: Function) -> Function:
        notes, switch, extend = self._notes, self._switch, self._notes.fresh.extend
        head = getattr(self._pool.free_block_queue, "fake_free_list_head", None)

        def get_new_blocks(*args: Any, **kwargs: Any) -> Any:
            if not switch.on:
                return original(*args, **kwargs)
            evicted, block = 0, head
            try:
                left = args[0]
                # Those at the head of the queue are found by their content until they are taken.
                while left and block is not None:
                    block, left = block.next_free_block, left - 1
                    if block is not None and block.block_hash is not None:
                        evicted += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the engine
                switch.fail(error)
            blocks = original(*args, **kwargs)
            if switch.on:
                notes.evictions += evicted
                try:
                    extend(blocks)
                    if notes.in_connector:
                        notes.pinned.extend([(block, 1) for block in blocks])
                except Exception as error:  # noqa: BLE001 - nor this
                    switch.fail(error)
            return blocks

        return get_new_blocks

    def _resetting(self, original: Function) -> Function:
        notes = self._notes

        def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
            notes.all_cached = True
            return original(*args, **kwargs)

        return reset_prefix_cache

    def _touching(self, change: int, original: Function) -> Function:
        notes = self._notes

        # Not by name: an iterator that was gone through here would be empty for vLLM.
        def touched(blocks: Any, /) -> None:
            notes.touched.extend(blocks)
            if notes.in_connector:
                notes.pinned.extend([(block, change) for block in blocks])

        note = self._switch.guard(touched)

        def touch(*args: Any, **kwargs: Any) -> Any:
            args = _lasting(args)
            note(*args[:1])
            return original(*args, **kwargs)

        return touch

    def _evicting_ids(self, original: Function) -> Function:
        notes, pool = self._notes, self._pool

        def evicting(block_ids: Any, /) -> None:
            blocks = [pool.blocks[block] for block in block_ids]
            notes.touched.extend(blocks)
            notes.evictions += sum(block.block_hash is not None for block in blocks)

        note = self._switch.guard(evicting)

        def evict_blocks(*args: Any, **kwargs: Any) -> Any:
            args = _lasting(args)
            note(*args[:1])
            return original(*args, **kwargs)

        return evict_blocks

    def _moving(self, original: Function) -> Function:
        touched = self._notes.touched
        note = self._switch.guard(lambda source, destination, *_: touched.extend((source, destination)))

        def move_block_hashes(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        return move_block_hashes

    # -- tables ---------------------------------------------------------------------------------------------------

    def _emptying(self, original: Function) -> Function:
        dirty = self._notes.dirty
        note = self._switch.guard(lambda request, *_: dirty.add(request.request_id))

        def free(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        return free

    def _popping(self, original: Function) -> Function:
        notes = self._notes

        def popped(blocks: Any, request: Any, *_: Any) -> None:
            notes.dirty.add(request.request_id)
            notes.popped.append((blocks, request.request_id))

        note = self._switch.guard(popped)

        def pop_blocks_for_free(*args: Any, **kwargs: Any) -> Any:
            blocks = original(*args, **kwargs)
            note(blocks, *args, **kwargs)
            return blocks

        return pop_blocks_for_free

    def _looking_up(self, original: Function) -> Function:
        hits, caching = self._notes.hits, getattr(self._manager, "enable_caching", True)

        def looked_up(request: Any, tokens: int, *_: Any) -> None:
            # vLLM comes here with a request that is not looked up, too, as one that wants its prompt's probabilities.
            if caching and not getattr(request, "skip_reading_prefix_cache", False):
                hits.append((request, tokens))

        note = self._switch.guard(looked_up)

        def record_prefix_cache_stats(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        return record_prefix_cache_stats

    def _holding(self, original: Function) -> Function:
        dirty = self._notes.dirty
        note = self._switch.guard(lambda args, kwargs: dirty.add(kwargs["request_id"] if kwargs else args[0]))

        def allocate_new_computed_blocks(*args: Any, **kwargs: Any) -> Any:
            note(args, kwargs if "request_id" in kwargs else None)
            return original(*args, **kwargs)

        return allocate_new_computed_blocks

    def _rearranging(self, original: Function) -> Function:
        notes = self._notes

        def rearranged(before: int, request_id: str, *_: Any, **__: Any) -> None:
            if len(notes.touched) + len(notes.fresh) != before:
                notes.dirty.add(request_id)

        note = self._switch.guard(rearranged)

        def rearrange(*args: Any, **kwargs: Any) -> Any:
            before = len(notes.touched) + len(notes.fresh)
            result = original(*args, **kwargs)
            note(before, *args, **kwargs)
            return result

        return rearrange

    # -- the KV connector -----------------------------------------------------------------------------------------

    def _connecting(self, original: Function) -> Function:
        notes = self._notes

        def connect(*args: Any, **kwargs: Any) -> Any:
            within, notes.in_connector = notes.in_connector, True
            try:
                return original(*args, **kwargs)
            finally:
                notes.in_connector = within

        return connect


def _lasting(args: Any) -> Any:
    """vLLM gives iterators, too, and they can be gone through only once."""
    if not args or isinstance(args[0], (list, tuple, set)):
        return args
    return list(args[0]), *args[1:]
