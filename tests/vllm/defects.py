"""Defects of the kinds that vLLM has had, put into a live scheduler, with the exact blocks that each one spoils."""

from __future__ import annotations

import random
from typing import Any

SKIPPED_FREE, LOST_DECREF, DOUBLE_FREE = "skipped_free", "lost_decref", "double_free"


class Defects:
    """Injects into one scheduler. `skipped_free` and `lost_decref` happen with the next free they fit."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._manager, self._pool = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
        self._armed: list[str] = []
        self._freed_twice: set[int] = set()
        self.done: list[dict[str, Any]] = []
        """What has happened: the kind, the blocks in vLLM's numbers, and whose."""
        self._put_in()

    def take(self) -> list[dict[str, Any]]:
        """What has happened since this was last asked."""
        done, self.done = self.done, []
        return done

    def inject(self, kind: str, seed: int) -> None:
        """One defect; at once for a double free, if there is a block that suits."""
        if kind != DOUBLE_FREE:
            self._armed.append(kind)
            return
        held = [block for block in self._pool.blocks[1:] if self._is_sound(block)]
        if held:
            block = random.Random(seed).choice(held)
            self._pool.free_blocks([block])
            self._freed_twice.add(block.block_id)
            self._happened(DOUBLE_FREE, [block], self._holders(block))

    def repair(self, block_ids: list[int]) -> None:
        """Give double-freed blocks their reference back: vLLM would end at the next use of one."""
        self._pool.touch([self._pool.blocks[block] for block in block_ids])

    def _put_in(self) -> None:
        free, free_blocks = self._manager.free, self._pool.free_blocks

        def skipping_free(request: Any, *args: Any, **kwargs: Any) -> Any:
            if SKIPPED_FREE in self._armed and request.status.name == "FINISHED_ABORTED":
                blocks = self._manager.pop_blocks_for_free(request)
                if blocks:
                    self._armed.remove(SKIPPED_FREE)
                    self._happened(SKIPPED_FREE, blocks, [request.request_id])
                return None
            return free(request, *args, **kwargs)

        def losing_free_blocks(ordered_blocks: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = list(ordered_blocks)
            lost = next((block for block in blocks if block.ref_cnt > 1), None) if LOST_DECREF in self._armed else None
            if lost is not None:
                self._armed.remove(LOST_DECREF)
                blocks.remove(lost)
                self._happened(LOST_DECREF, [lost], [])
            return free_blocks(blocks, *args, **kwargs)

        self._manager.free, self._pool.free_blocks = skipping_free, losing_free_blocks

    def _happened(self, kind: str, blocks: Any, requests: list[str]) -> None:
        self.done.append({"kind": kind, "blocks": [block.block_id for block in blocks], "requests": requests})

    def _is_sound(self, block: Any) -> bool:
        """Whether tables explain all of a block's references, and it was not chosen before."""
        return block.block_id not in self._freed_twice and 0 < block.ref_cnt == len(self._holders(block))

    def _holders(self, block: Any) -> list[str]:
        (group,) = self._manager.coordinator.single_type_managers
        return [
            request_id for request_id in self._scheduler.requests if block in group.req_to_blocks.get(request_id, ())
        ]
