"""The real vLLM's scheduler without an engine around it: made-up model outputs, no weights, every step by hand."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import thread_time_ns
from typing import Any

FIRST_TOKEN = 3


class BareScheduler:
    """One scheduler of vLLM's over a pool of `blocks` blocks, null block included. `asynchronous` runs a step ahead.

    With a `window` there is a second cache group, of sliding-window layers; with `states` one of Mamba states, both
    groups having blocks of that many tokens, and contents being looked up by `block_size`. `rank` is that among
    data-parallel peers.
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
        states: int = 0,
        rank: int = 0,
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
            KVCacheTensor,
            MambaSpec,
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
        config.parallel_config.data_parallel_rank = config.parallel_config.data_parallel_index = rank
        tokens = states or block_size
        shape: dict[str, Any] = {
            "block_size": tokens, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32
        }  # fmt: skip
        groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))]
        if window:
            groups.append(KVCacheGroupSpec(["windowed"], SlidingWindowSpec(**shape, sliding_window=window)))
        if states:
            config.cache_config.block_size, config.cache_config.mamba_cache_mode = states, "align"
            kept = MambaSpec(block_size=states, shapes=((8, 8),), dtypes=(torch.float32,), mamba_cache_mode="align")
            groups.append(KVCacheGroupSpec(["states"], kept))
        page, tensors = groups[0].kv_cache_spec.page_size_bytes, list[Any]()
        if config.kv_transfer_config is not None:  # connectors ask how large the whole is
            tensors.append(KVCacheTensor(size=blocks * page, layers=["layer"], layer_stride=page, block_stride=page))
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(block_size, sha256)
        self.scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=tokens,
            hash_block_size=block_size,
            log_stats=True,
        )
        self.control_ns = 0
        """Processor time that vLLM's schedule and update_from_output have taken, with whatever is hooked into them."""
        self._drafts = int(config.num_speculative_tokens)
        self._ahead = 2 if asynchronous else 1
        self._in_flight: deque[Any] = deque()
        self.transferred: Any = None
        """vLLM's `KVConnectorOutput` that comes with the next model output."""

    def add(
        self,
        request_id: str,
        prompt: list[int],
        *,
        max_tokens: int = 16,
        stop: tuple[int, ...] = (),
        pattern: str = "",
        sampling: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """A request arrives. `stop` are tokens that end it; with a `pattern` it waits for a grammar nobody makes."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams
        from vllm.v1.request import Request

        self.scheduler.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(
                    max_tokens=max_tokens,
                    ignore_eos=not stop,
                    stop_token_ids=list(stop) or None,
                    structured_outputs=StructuredOutputsParams(regex=pattern) if pattern else None,
                    **sampling or {},
                ),
                pooling_params=None,
                block_hasher=self._hasher,
                **fields,
            )
        )

    def abort(self, *request_ids: str) -> None:
        """Clients went away."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(list(request_ids), RequestStatus.FINISHED_ABORTED)

    def schedule(self) -> Any:
        """The first half of a step; vLLM's scheduler output."""
        began = thread_time_ns()
        output = self.scheduler.schedule()
        self.control_ns += thread_time_ns() - began
        requests = self.scheduler.requests
        sampling = {i for i in output.num_scheduled_tokens if not requests[i].is_prefill_chunk}
        self._in_flight.append((output, sampling))
        return output

    def update(self) -> Any:
        """The second half of the oldest step in flight, with random tokens; the scheduler output it had."""
        output, sampling = self._in_flight.popleft()
        computed = self._computed(output, sampling)
        began = thread_time_ns()
        self.scheduler.update_from_output(output, computed)
        self.control_ns += thread_time_ns() - began
        self._draft()
        return output

    @property
    def in_flight(self) -> int:
        """Steps that were scheduled and not updated."""
        return len(self._in_flight)

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

    def _draft(self) -> None:
        """With speculative decoding: guesses for the next step, of some requests some."""
        if not self._drafts:
            return
        from vllm.v1.outputs import DraftTokenIds

        names = [request.request_id for request in self.scheduler.running]
        guesses = [self._tokens(self.random.randrange(self._drafts + 1)) for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, guesses))

    def _tokens(self, number: int) -> list[int]:
        return [self.random.randrange(FIRST_TOKEN, 512) for _ in range(number)]

    def _computed(self, output: Any, sampling: set[str]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        transferred, self.transferred = self.transferred, None
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[
                self._tokens(1 + self._accepted(output, request_id)) if request_id in sampling else []
                for request_id in ids
            ],
            kv_connector_output=transferred,
        )

    def _accepted(self, output: Any, request_id: str) -> int:
        """How many of a request's guesses turn out right."""
        guesses = output.scheduled_spec_decode_tokens.get(request_id, ())
        return self.random.randrange(len(guesses) + 1) if guesses else 0
