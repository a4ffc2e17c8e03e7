"""The least that the instrument takes for a scheduler of vLLM's, for error containment: truth is tested on vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

BLOCKS = 9


class Block:
    def __init__(self, block_id: int) -> None:
        self.block_id, self.ref_cnt, self.is_null = block_id, 0, block_id == 0
        self.block_hash: bytes | None = None
        self.next_free_block: object | None = object()


class Pool:
    def __init__(self, blocks: int = BLOCKS) -> None:
        self.blocks = [Block(number) for number in range(blocks)]
        self.null_block, self.num_gpu_blocks = self.blocks[0], blocks
        self.free_block_queue = SimpleNamespace(num_free_blocks=blocks - 1)

    def get_new_blocks(self, count: int) -> list[Block]:
        taken = [block for block in self.blocks[1:] if not block.ref_cnt][:count]
        for block in taken:
            block.ref_cnt, block.next_free_block = 1, None
        self.free_block_queue.num_free_blocks -= count
        return taken

    def touch(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt, block.next_free_block = 0, object()
            self.free_block_queue.num_free_blocks += 1


class Scheduler:
    def __init__(self, blocks: int = BLOCKS) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.max_model_len = 64
        self.scheduler_config = SimpleNamespace(max_num_seqs=2, max_num_batched_tokens=32)
        self.cache_config = SimpleNamespace(enable_prefix_caching=True)
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_rank=0),
            model_config=SimpleNamespace(served_model_name="fake", model="fake"),
        )
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=["layer"])])
        group = SimpleNamespace(block_size=16, kv_cache_spec=SimpleNamespace(page_size_bytes=64), req_to_blocks={})
        self.kv_cache_manager = SimpleNamespace(
            block_pool=Pool(blocks),
            coordinator=SimpleNamespace(single_type_managers=(group,)),
            free=lambda request: None,
        )

    def has_requests(self) -> bool:
        return bool(self.requests)

    def schedule(self) -> str:
        return "output"

    def update_from_output(self, output: Any, computed: Any) -> str:
        return "outputs"

    def add_request(self, request: Any) -> str:
        self.requests[request.request_id] = request
        return "added"

    def finish_requests(self, request_ids: Any, status: Any) -> list[Any]:
        ended = [self.requests[request_id] for request_id in request_ids]
        for request in ended:
            request.status = SimpleNamespace(name="FINISHED_ABORTED")
            self._free_request(request)
            self._free_blocks(request)
            del self.requests[request.request_id]
        return ended

    def abort(self, request_id: str) -> None:
        """A waiting request's client went away."""
        self.finish_requests([request_id], None)

    def _free_blocks(self, request: Any) -> None: ...

    def _free_request(self, request: Any) -> None: ...
