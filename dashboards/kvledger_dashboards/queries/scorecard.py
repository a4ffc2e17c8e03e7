"""Queries of the seven figures of `kvledger scorecard`, of the worst engine core of each model."""

from __future__ import annotations

from kvledger_dashboards.queries.selection import CORE, now, select

BYTES_PER_TOKEN = now(f"max by (model) (sum by (model, {CORE}) ({select('group_bytes_per_token')}))", "{{model}}")
BLOCK_SIZE = now(f"max by (model) ({select('group_block_size_tokens')})", "{{model}}")
PEAK_ACTIVE = now(f"max by (model) ({select('pool_peak_active_blocks')})", "{{model}}")
CONCURRENCY = (
    *(
        now(f"min by (model) ({select('maximum_concurrency', percentile=p)})", f"{{{{model}}}} P{p}")
        for p in ("50", "95", "99")
    ),
    now(f"max by (model) ({select('requests_peak_running')})", "{{model}} reached"),
)
"""What fits at the length percentiles, beside the most that ran in the last minute."""
REJECTION_RATIO = now(f"max by (model) ({select('scorecard_rejection_ratio')})", "{{model}}")
TTFT_P95 = now(f"max by (model) ({select('scorecard_ttft_p95_seconds')})", "{{model}}")
COST_PER_REQUEST = now(f"max by (model) ({select('scorecard_cost_per_request')})", "{{model}}")
