"""What this vLLM has that the instrument needs, attribute by attribute. What is missing turns one capability off."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from kvledger_vllm.errors import InstrumentError

NEEDED = (
    "requests", "running", "waiting", "schedule", "update_from_output", "add_request", "finish_requests",
    "_free_blocks", "_free_request", "has_requests", "vllm_config", "kv_cache_config", "scheduler_config",
    "kv_cache_manager.block_pool.blocks", "kv_cache_manager.block_pool.free_block_queue.num_free_blocks",
    "kv_cache_manager.block_pool.get_new_blocks", "kv_cache_manager.block_pool.touch",
    "kv_cache_manager.block_pool.free_blocks", "kv_cache_manager.block_pool.null_block",
    "kv_cache_manager.coordinator.single_type_managers", "kv_cache_manager.free",
)  # fmt: skip
"""Without any of these there is no truthful mirror at all."""

OPTIONAL = {
    "_preempt_request": "preemptions, and the tokens they lose",
    "_free_cow_retained_blocks": "pins of copy-on-write ends, told from deferred frees",
    "deferred_frees": "pins of deferred frees",
    "deferred_waiting": "the wait cause `deferred`",
    "reset_prefix_cache": "prefix cache resets",
    "shutdown": "clean stops",
    "kv_cache_manager.record_prefix_cache_stats": "prefix look-ups and hits",
    "kv_cache_manager.block_pool.free_block_queue.fake_free_list_head": "evictions",
    "kv_cache_manager.coordinator.allocate_new_computed_blocks": "blocks of requests that hold them before they run",
}
"""Attribute of the scheduler -> what is not seen without it."""


NEVER = (
    "rejections_total", "tenant_rejections_total", "allocation", "cow_copies_total", "cow_bytes_total",
    "sharing_overhead_seconds_total", "swapped_blocks_total",
)  # fmt: skip
"""Families that no vLLM's scheduler tells: refusals are made before it, copies are the workers', and it swaps
nothing itself."""

COUNTED_BY = {
    "_preempt_request": ("preemptions_total", "recomputed_tokens_total", "preempted_blocks_total"),
    "kv_cache_manager.record_prefix_cache_stats": ("prefix_queried_tokens_total", "prefix_hit_tokens_total"),
    "kv_cache_manager.block_pool.free_block_queue.fake_free_list_head": ("evictions_total",),
}
"""Attribute of the scheduler -> families that are not counted without it."""


def unreported(scheduler: Any) -> tuple[str, ...]:
    """Families of the catalogue that this vLLM's ledger cannot tell."""
    return NEVER + tuple(name for path, names in COUNTED_BY.items() if not has(scheduler, path) for name in names)


def has(scheduler: Any, path: str) -> bool:
    """Whether a scheduler has an attribute, dots followed."""
    try:
        attrgetter(path)(scheduler)
    except AttributeError:
        return False
    return True


def blind_spots(scheduler: Any) -> list[str]:
    """One sentence for each capability this vLLM lacks. Raises `InstrumentError` where there can be no mirror."""
    missing = [path for path in NEEDED if not has(scheduler, path)]
    if missing:
        raise InstrumentError(f"this vLLM's scheduler has no {', '.join(missing)}")
    return [f"this vLLM has no {p}: not seen are {what}" for p, what in OPTIONAL.items() if not has(scheduler, p)]
