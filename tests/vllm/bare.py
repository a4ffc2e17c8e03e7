"""The real vLLM's scheduler without an engine around it: made-up model outputs, no weights, every step by hand."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from time import thread_time_ns
from typing import Any

FIRST_TOKEN = 3


class BareScheduler:
    """One scheduler of vLLM's over a pool of `blocks` blocks, null block included. `asynchronous` runs a step ahead.

    With a `window` there is a second cache group, of sliding-window layers.
    """

    def __init__(
        self,
        model: Path,
        *,
        blocks: int,
        block_size: int = 16,
        asynchronous: bool = True,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        seed: int = 0,
        window: int = 0,
        **arguments: Any,
    ) -> None:
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            SlidingWindowSpec,
        )
        from vllm.v1.structured_output import StructuredOutputManager

        self.random = random.Random(seed)
        config = EngineArgs(
            model=str(model),
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            async_scheduling=asynchronous,
            enforce_eager=True,
            **arguments,
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        shape: dict[str, Any] = {
            "block_size": block_size, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32
        }  # fmt: skip
        groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))]
        if window:
            groups.append(KVCacheGroupSpec(["windowed"], SlidingWindowSpec(**shape, sliding_window=window)))
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(block_size, sha256)
        self.scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=block_size,
            log_stats=True,
        )
        self.control_ns = 0
        """Processor time that vLLM's schedule and update_from_output have taken, with whatever is hooked into them."""
        self._ahead = 2 if asynchronous else 1
        self._in_flight: deque[Any] = deque()

    def add(self, request_id: str, prompt: list[int], *, max_tokens: int = 16, **fields: Any) -> None:
        """A request arrives."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self.scheduler.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                pooling_params=None,
                block_hasher=self._hasher,
                **fields,
            )
        )

    def abort(self, *request_ids: str) -> None:
        """Clients went away."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(list(request_ids), RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> None:
        """The first half of a step."""
        began = thread_time_ns()
        output = self.scheduler.schedule()
        self.control_ns += thread_time_ns() - began
        requests = self.scheduler.requests
        sampling = {i for i in output.num_scheduled_tokens if not requests[i].is_prefill_chunk}
        self._in_flight.append((output, sampling))

    def update(self) -> None:
        """The second half of the oldest step in flight, with random tokens."""
        output, sampling = self._in_flight.popleft()
        computed = self._computed(output, sampling)
        began = thread_time_ns()
        self.scheduler.update_from_output(output, computed)
        self.control_ns += thread_time_ns() - began

    def full(self) -> bool:
        """Whether as many steps are in flight as may be."""
        return len(self._in_flight) >= self._ahead

    def step(self) -> None:
        """Schedule one step, and apply the oldest one once as many are in flight as may be."""
        self.schedule()
        if self.full():
            self.update()

    def drain(self) -> None:
        """Apply everything that is in flight."""
        while self._in_flight:
            self.update()

    def _computed(self, output: Any, sampling: set[str]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[
                [self.random.randrange(FIRST_TOKEN, 512)] if request_id in sampling else [] for request_id in ids
            ],
        )
