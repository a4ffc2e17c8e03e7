"""The limits of a vLLM scheduler's ledger: identity, pool, cache groups, and how much it must be able to hold."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

from kvledger.limits import Group, Limits
from kvledger_vllm.capabilities import unreported
from kvledger_vllm.errors import InstrumentError
from kvledger_vllm.settings import Settings

LEAST_REQUESTS, MOST_REQUESTS = 1024, 8192
MOST_SHARING, SHARING_WITH_TRANSFERS = 32, 8
_WORD = re.compile(r"(?<=[a-z])([A-Z])")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")


def limits_of(scheduler: Any, settings: Settings) -> Limits:
    """Limits from a scheduler's configuration. Raises `InstrumentError` for what this instrument cannot mirror."""
    pool, config = scheduler.kv_cache_manager.block_pool, scheduler.vllm_config
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    if not managers or pool.num_gpu_blocks < 2:
        raise InstrumentError("this engine has no KV cache blocks to show")
    if pool.null_block.block_id != 0:
        raise InstrumentError(f"null block {pool.null_block.block_id}, not 0: this vLLM numbers its blocks differently")
    groups = tuple(_group(index, manager, scheduler.kv_cache_config) for index, manager in enumerate(managers))
    capacity = pool.num_gpu_blocks - 1
    most_running = int(scheduler.scheduler_config.max_num_seqs)
    longest = int(scheduler.max_model_len)
    tables = sum(-(-longest // group.block_size_tokens) for group in groups)
    requests = settings.max_requests or min(max(4 * most_running, LEAST_REQUESTS), MOST_REQUESTS)
    transfers = getattr(scheduler, "connector", None) is not None
    if transfers:
        # Who has ended, or does not run yet, may hold blocks for as long as a transfer takes, and needs a slot then.
        requests = max(requests, min(capacity + 2 * most_running, MOST_REQUESTS))
    return Limits(
        engine=_NOT_IN_A_NAME.sub("-", settings.engine),
        capacity_blocks=capacity,
        max_requests=max(requests, 2 * most_running),
        model=_model_name(config),
        rank=rank_of(config),
        groups=groups,
        max_logical_blocks=max(
            capacity,
            min(most_running * tables, MOST_SHARING * capacity),
            min(requests * tables, SHARING_WITH_TRANSFERS * capacity) if transfers else 0,
        ),
        max_num_seqs=most_running,
        max_num_batched_tokens=int(scheduler.scheduler_config.max_num_batched_tokens),
        max_model_len_tokens=longest,
        budget_bytes=pool.num_gpu_blocks * max(group.block_bytes for group in groups),
        admission_watermark_blocks=int(getattr(scheduler.kv_cache_manager, "watermark_blocks", 0)),
        prefix_caching=bool(scheduler.cache_config.enable_prefix_caching),
        unreported=unreported(scheduler),
    )


def packed_limits(limits: Limits) -> str:
    """Limits as one line of text."""
    return json.dumps(asdict(limits))


def limits_from(packed: str) -> Limits:
    """The opposite of `packed_limits`."""
    values = json.loads(packed)
    groups = tuple(Group(**group) for group in values["groups"])
    return Limits(**values | {"groups": groups, "unreported": tuple(values["unreported"])})


def rank_of(config: Any) -> int:
    """The engine core's rank among its data-parallel peers."""
    parallel = config.parallel_config
    rank = getattr(parallel, "data_parallel_index", None)
    return int(parallel.data_parallel_rank if rank is None else rank)


def _model_name(config: Any) -> str:
    served = getattr(config.model_config, "served_model_name", None) or config.model_config.model
    return str(served if isinstance(served, str) else served[0])


def _group(index: int, manager: Any, cache: Any) -> Group:
    """One cache group; sizes in bytes are over all its layers, 0 where this vLLM does not say."""
    spec, size = manager.kv_cache_spec, int(manager.block_size)
    layers = len(cache.kv_cache_groups[index].layer_names)
    # A spec made of its layers' specs already counts them all.
    page = int(getattr(spec, "page_size_bytes", 0) or 0) * (1 if hasattr(spec, "kv_cache_specs") else layers)
    window = getattr(spec, "sliding_window", None)
    name = _WORD.sub(r"_\1", type(spec).__name__.removesuffix("Spec")).lower().lstrip("_")
    return Group(
        name=f"{name}-{index}" if index else name,
        block_size_tokens=size,
        block_bytes=page,
        bytes_per_token=page // size,
        window_tokens=int(window or 0),
    )
