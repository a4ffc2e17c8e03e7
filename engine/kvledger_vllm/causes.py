"""Why the head of vLLM's queue was not admitted by the schedule that has just ended. Reads, never changes."""

from __future__ import annotations

from typing import Any

from kvledger.words import WaitCause


def head_cause(scheduler: Any, output: Any, *, preempted: bool, may_throttle: bool) -> WaitCause:
    """The cause, in the order in which vLLM's own scan for waiting requests gives up.

    What is left when nothing else stopped the scan is the pool, which refused the head its blocks; unless it has room
    for the whole of it: then a part of the step's budget is used up that the output does not show, as the encoder's.
    """
    if is_paused(scheduler):
        return WaitCause.PAUSED
    if preempted:
        return WaitCause.PREEMPTION
    scheduled = output.total_num_scheduled_tokens
    if scheduled >= scheduler.max_num_scheduled_tokens or _input_budget_left(scheduler, output) <= 0:
        return WaitCause.TOKEN_BUDGET
    running = len(scheduler.running) + getattr(scheduler, "num_waiting_for_streaming_input", 0)
    if running >= getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs):
        return WaitCause.BATCH_SLOTS
    if may_throttle and not getattr(scheduler, "prefill_capacity_bound", False):
        return WaitCause.TOKEN_BUDGET
    head = _head(scheduler)
    if head is not None and (_does_not_fit_the_step(scheduler, head, scheduled) or _has_room(scheduler, head)):
        return WaitCause.TOKEN_BUDGET
    return WaitCause.POOL


def is_paused(scheduler: Any) -> bool:
    """Whether nobody who waits may be admitted: all is paused, or new requests are and none that waits holds blocks."""
    state = getattr(getattr(scheduler, "_pause_state", None), "name", "UNPAUSED")
    return state == "PAUSED_ALL" or (state != "UNPAUSED" and not getattr(scheduler, "kv_holding_waiting", None))


def _input_budget_left(scheduler: Any, output: Any) -> int:
    config = scheduler.scheduler_config
    spec = getattr(scheduler.vllm_config, "speculative_config", None)
    drafts = int(getattr(spec, "max_num_new_slots_for_drafting", 0) or 0) if spec is not None else 0
    used = int(output.total_num_scheduled_tokens) + drafts * len(output.num_scheduled_tokens)
    return int(config.max_num_batched_tokens) - used - drafts


def _head(scheduler: Any) -> Any:
    """The first request that vLLM's scan did not pass over, None where there is none."""
    deferred = getattr(scheduler, "deferred_waiting", ())
    for queue in (getattr(scheduler, "kv_holding_waiting", None), scheduler.waiting):
        if not queue:
            continue
        # To go through a queue of priorities copies it: a look at its first is enough, as a rule.
        first = queue.peek_request()
        if first not in deferred:
            return first
        if (found := next((request for request in queue if request not in deferred), None)) is not None:
            return found
    return None


def _does_not_fit_the_step(scheduler: Any, head: Any, scheduled: int) -> bool:
    """Without chunked prefill a prompt waits for a step that has room for the whole of it."""
    if getattr(scheduler.scheduler_config, "enable_chunked_prefill", True):
        return False
    return int(head.num_tokens) > int(scheduler.max_num_scheduled_tokens) - scheduled


def _has_room(scheduler: Any, head: Any) -> bool:
    """Whether the pool can hold the whole head and its look-ahead beside what is kept free: it did not refuse it.

    What a connector reserves is not known here, so that with one it may have.
    """
    if getattr(scheduler, "connector", None) is not None:
        return False
    manager = scheduler.kv_cache_manager
    tokens = int(head.num_tokens) + int(getattr(scheduler, "num_lookahead_tokens", 0))
    blocks = sum(-(-tokens // int(group.block_size)) for group in manager.coordinator.single_type_managers)
    kept = int(getattr(manager, "watermark_blocks", 0))
    return blocks + kept <= int(manager.block_pool.free_block_queue.num_free_blocks)
