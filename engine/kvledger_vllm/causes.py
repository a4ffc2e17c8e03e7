"""Why the head of vLLM's queue was not admitted by the schedule that has just ended. Reads, never changes."""

from __future__ import annotations

from typing import Any

from kvledger.words import WaitCause


def head_cause(scheduler: Any, output: Any, *, preempted: bool, may_throttle: bool) -> WaitCause:
    """The cause, in the order in which vLLM's own scan for waiting requests gives up.

    What is left when nothing else stopped the scan is the pool: the head's allocation was refused.
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
    if _does_not_fit_the_step(scheduler, scheduled):
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


def _does_not_fit_the_step(scheduler: Any, scheduled: int) -> bool:
    """Without chunked prefill a prompt waits for a step that has room for the whole of it."""
    if getattr(scheduler.scheduler_config, "enable_chunked_prefill", True) or not scheduler.waiting:
        return False
    head = scheduler.waiting.peek_request()
    return int(head.num_tokens) > int(scheduler.max_num_scheduled_tokens) - scheduled
