"""Queries of the block pool: what it is used for, what is left, what it costs to run it, what sharing brings."""

from __future__ import annotations

from kvledger.words import BlockState
from kvledger_dashboards.queries.selection import (
    CORE,
    CORE_LEGEND,
    Query,
    added,
    now,
    per_second,
    percentiles,
    quantile,
    ratio,
    select,
)

ACTIVE, CACHED, FREE = (BlockState[name].word for name in ("ACTIVE", "CACHED", "FREE"))

BLOCKS = tuple(Query(added("pool_blocks", state=state), state) for state in (ACTIVE, CACHED, FREE))
"""In the order of the stack, from the bottom."""
CAPACITY = Query(added("pool_capacity_blocks"), "capacity")


def _of_all(blocks: str) -> str:
    """A sum over pools, only where every pool has it: beside the whole capacity the sum of a part would mislead."""
    return f"sum({blocks}) and on () count({blocks}) == on () count({select('pool_capacity_blocks')})"


ALERT_WATERMARK = Query(
    _of_all(f"{select('pool_alert_watermark_ratio')} * {select('pool_capacity_blocks')}"), "alert watermark"
)
ADMISSION_WATERMARK = Query(
    _of_all(f"{select('pool_capacity_blocks')} - {select('pool_admission_watermark_blocks')}"), "admission watermark"
)
LOGICAL = Query(added("group_logical_blocks"), "logical")
SHARED = Query(added("group_shared_blocks"), "shared")
_ACTIVE_SHARE = ratio(added("pool_blocks", CORE, state=ACTIVE), added("pool_capacity_blocks", CORE))
ACTIVE_SHARE = Query(_ACTIVE_SHARE, CORE_LEGEND)
LOWEST_ALERT_WATERMARK = Query(f"min({select('pool_alert_watermark_ratio')})", "alert watermark")

_ROOM = f"{added('pool_blocks', CORE, state=FREE)} + {added('pool_blocks', CORE, state=CACHED)}"
_HEADROOM = f"{_ROOM} - {added('pool_committed_blocks', CORE)}"
HEADROOM = Query(_HEADROOM, CORE_LEGEND)
ACTIVE_NOW = BLOCKS[0]
PEAK = Query(added("pool_peak_active_blocks"), "peak of the last minute")
PROMISED = Query(f"{added('pool_blocks', state=ACTIVE)} + {added('pool_committed_blocks')}", "active and committed")


def _saved(by: str = "") -> str:
    """What tables hold less the active blocks; those that leaked are active and in no table."""
    return (
        f"{added('group_logical_blocks', by)} + {added('pool_leaked_blocks', by)} - {added('group_active_blocks', by)}"
    )


FULLEST = now(f"max({_ACTIVE_SHARE})", "fullest")
FULLEST_PEAK = now(
    f"max({ratio(added('pool_peak_active_blocks', CORE), added('pool_capacity_blocks', CORE))})", "highest peak"
)
LEAST_HEADROOM = now(f"min({_HEADROOM})", "least headroom")
COMMITTED = now(added("pool_committed_blocks"), "committed")
EXHAUSTION = now(f"min({select('pool_seconds_to_exhaustion')})", "until exhaustion")
LEAKED_NOW = now(added("pool_leaked_blocks"), "leaked")
PINNED_NOW = now(added("pool_pinned_blocks"), "pinned")
SAVED_NOW = now(_saved(), "saved")
BUDGET = now(added("pool_budget_bytes", "model"), "{{model}}")
RESERVE = now(added("pool_reserve_bytes", "model"), "{{model}}")
BLOCK_BYTES = now(f"max by (model, group) ({select('group_block_bytes')})", "{{model}} {{group}}")

TAIL_WASTE = Query(
    ratio(
        added("group_tail_waste_slots", f"{CORE}, group"),
        f"sum by ({CORE}, group) ({select('group_active_blocks')} * {select('group_block_size_tokens')})",
    ),
    f"{CORE_LEGEND} {{{{group}}}}",
)
LONGEST_RUN = Query(f"min by ({CORE}) ({select('pool_longest_free_run_blocks')})", CORE_LEGEND)
PINNED = Query(added("pool_pinned_blocks", "kind"), "{{kind}}")

EVICTIONS = Query(per_second("evictions_total", CORE), CORE_LEGEND)
COPIES = Query(per_second("cow_copies_total", CORE), CORE_LEGEND)
COPIED_BYTES = Query(per_second("cow_bytes_total", CORE), CORE_LEGEND)
PREEMPTIONS = Query(per_second("preemptions_total", "mode"), "{{mode}}")
SWAPPED = Query(per_second("swapped_blocks_total", "direction"), "{{direction}}")
PREEMPTED_BLOCKS = Query(per_second("preempted_blocks_total", "fate"), "{{fate}}")
FAILURES = Query(per_second("allocation_failures_total", CORE), CORE_LEGEND)

ALLOCATION = percentiles("allocation", 50, 95, 99)
RELEASE = Query(quantile(95, "release", "cause"), "{{cause}}")
OLDEST_FINISHING = Query(f"max by ({CORE}) ({select('oldest_finishing_seconds')})", CORE_LEGEND)
LIFETIME = tuple(
    Query(quantile(percent, "block_reference_lifetime", shared=shared), f"{word} P{percent}")
    for word, shared in (("private", "false"), ("shared", "true"))
    for percent in (50, 95)
)

HIT_RATIO = Query(
    ratio(per_second("prefix_hit_tokens_total", CORE), per_second("prefix_queried_tokens_total", CORE)), CORE_LEGEND
)
SAVED = Query(_saved(CORE), CORE_LEGEND)
SHARING_OVERHEAD = Query(per_second("sharing_overhead_seconds_total", CORE), CORE_LEGEND)
