"""The hooks on vLLM's block pool and block tables: which blocks and whose tables may have changed. They only note."""

from __future__ import annotations

from typing import Any

from kvledger_vllm.notes import Notes
from kvledger_vllm.switch import Switch
from kvledger_vllm.wrapping import Function, Wrappers


class BlockHooks:
    """Wrappers of the pool, the cache manager and the managers of its groups."""

    def __init__(self, scheduler: Any, notes: Notes, wrappers: Wrappers, switch: Switch) -> None:
        self._manager, self._notes, self._wrappers = scheduler.kv_cache_manager, notes, wrappers
        self._switch = switch
        self._pool = self._manager.block_pool

    def put_in(self) -> None:
        """Wrap everything that changes blocks or tables."""
        wrap, pool, manager = self._wrappers.wrap, self._pool, self._manager
        wrap(pool, "get_new_blocks", self._getting)
        wrap(pool, "reset_prefix_cache", self._resetting)
        for name in ("touch", "free_blocks", "unpin_blocks"):
            wrap(pool, name, self._touching)
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

    # -- the pool -------------------------------------------------------------------------------------------------

    def _getting(self, original: Function) -> Function:
        notes, switch, extend = self._notes, self._switch, self._notes.fresh.extend
        head = getattr(self._pool.free_block_queue, "fake_free_list_head", None)

        def get_new_blocks(num_blocks: int, *args: Any, **kwargs: Any) -> Any:
            if not switch.on:
                return original(num_blocks, *args, **kwargs)
            evicted, block, left = 0, head, num_blocks
            try:
                # Those at the head of the queue are found by their content until they are taken.
                while left and block is not None:
                    block, left = block.next_free_block, left - 1
                    if block is not None and block.block_hash is not None:
                        evicted += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the engine
                switch.fail(error)
            blocks = original(num_blocks, *args, **kwargs)
            if switch.on:
                notes.evictions += evicted
                try:
                    extend(blocks)
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

    def _touching(self, original: Function) -> Function:
        note = self._switch.guard(self._notes.touched.extend)

        def touch(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = _lasting(blocks)
            note(blocks)
            return original(blocks, *args, **kwargs)

        return touch

    def _evicting_ids(self, original: Function) -> Function:
        notes, pool = self._notes, self._pool

        def evicting(block_ids: Any) -> None:
            blocks = [pool.blocks[block] for block in block_ids]
            notes.touched.extend(blocks)
            notes.evictions += sum(block.block_hash is not None for block in blocks)

        note = self._switch.guard(evicting)

        def evict_blocks(block_ids: Any, *args: Any, **kwargs: Any) -> Any:
            block_ids = _lasting(block_ids)
            note(block_ids)
            return original(block_ids, *args, **kwargs)

        return evict_blocks

    def _moving(self, original: Function) -> Function:
        note = self._switch.guard(self._notes.touched.extend)

        def move_block_hashes(src_block: Any, dst_block: Any, *args: Any, **kwargs: Any) -> Any:
            note((src_block, dst_block))
            return original(src_block, dst_block, *args, **kwargs)

        return move_block_hashes

    # -- tables ---------------------------------------------------------------------------------------------------

    def _emptying(self, original: Function) -> Function:
        note = self._switch.guard(self._of_request)

        def free(request: Any, *args: Any, **kwargs: Any) -> Any:
            note(request)
            return original(request, *args, **kwargs)

        return free

    def _of_request(self, request: Any) -> None:
        self._notes.dirty.add(request.request_id)

    def _popping(self, original: Function) -> Function:
        notes = self._notes

        def popped(request: Any, blocks: Any) -> None:
            notes.dirty.add(request.request_id)
            notes.popped.append((blocks, request.request_id))

        note = self._switch.guard(popped)

        def pop_blocks_for_free(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = original(request, *args, **kwargs)
            note(request, blocks)
            return blocks

        return pop_blocks_for_free

    def _looking_up(self, original: Function) -> Function:
        hits = self._notes.hits
        note = self._switch.guard(lambda request, tokens: hits.append((request, tokens)))

        def record_prefix_cache_stats(request: Any, num_hits: int, *args: Any, **kwargs: Any) -> Any:
            note(request, num_hits)
            return original(request, num_hits, *args, **kwargs)

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

        def rearrange(request_id: str, *args: Any, **kwargs: Any) -> Any:
            before = len(notes.touched) + len(notes.fresh)
            result = original(request_id, *args, **kwargs)
            if len(notes.touched) + len(notes.fresh) != before:
                notes.dirty.add(request_id)
            return result

        return rearrange


def _lasting(given: Any) -> Any:
    """vLLM gives iterators, too, and they can be gone through only once."""
    return given if isinstance(given, (list, tuple, set)) else list(given)
