"""Families that only ever grow, whatever restarts."""

from __future__ import annotations

from kvledger.families.build import counter
from kvledger.families.family import Family, Label
from kvledger.words import CancelCause, FinishReason, PreemptedFate, PreemptionMode, RejectionReason, SwapDirection

_FINISH = Label("finish_reason", FinishReason.words())

COUNTERS: tuple[Family, ...] = (
    counter("requests_total", "Accepted requests that ended, by reason.", "", _FINISH, per_tenant=True),
    counter(
        "rejections_total",
        "Requests refused before any block was held, by reason.",
        "",
        Label("reason", RejectionReason.words()),
    ),
    counter("tenant_rejections_total", "Requests refused before any block was held, by tenant.", per_tenant=True),
    counter("cancellations_total", "Requests cancelled, by who did it.", "", Label("cause", CancelCause.words())),
    counter(
        "preemptions_total",
        "Requests preempted, by how their content comes back.",
        "",
        Label("mode", PreemptionMode.words()),
    ),
    counter(
        "preempted_blocks_total",
        "Blocks of preempted requests, by what became of them.",
        "blocks",
        Label("fate", PreemptedFate.words()),
    ),
    counter(
        "swapped_blocks_total",
        "Blocks copied between the pool and host memory, by direction.",
        "blocks",
        Label("direction", SwapDirection.words()),
    ),
    counter("recomputed_tokens_total", "Tokens computed again after a preemption.", "tokens"),
    counter("prefix_queried_tokens_total", "Tokens looked up in the prefix index.", "tokens"),
    counter("prefix_hit_tokens_total", "Tokens found in the prefix index and not computed again.", "tokens"),
    counter("evictions_total", "Cached blocks that lost their content to a new allocation."),
    counter("cow_copies_total", "Blocks copied because a shared block was about to be written."),
    counter("cow_bytes_total", "Bytes copied because a shared block was about to be written.", "bytes"),
    counter(
        "sharing_overhead_seconds_total", "Time spent on prefix lookups, reference counts and copy-on-write.", "seconds"
    ),
    counter("prompt_tokens_total", "Prompt tokens of accepted requests.", "tokens"),
    counter("generation_tokens_total", "Tokens generated.", "tokens"),
    counter(
        "block_seconds_total",
        "Integral of blocks held over time, a shared block's second split among its holders.",
        "seconds",
        per_tenant=True,
    ),
    counter("cost_total", "Cost of block-seconds at the configured price.", per_tenant=True),
    counter("allocation_failures_total", "Allocations the pool could not serve."),
    counter("engine_steps_total", "Steps the engine has completed."),
    counter("engine_restarts_total", "Engine starts that inherited a predecessor's ledger."),
)
