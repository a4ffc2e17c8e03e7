"""Queries of tenants: who holds the pool, who is refused, who waits, and what each costs."""

from __future__ import annotations

from kvledger_dashboards.queries.selection import Query, added, per_second, ratio, select, top

HOUR_SECONDS = 3600

BLOCKS = Query(top(added("tenant_blocks", "tenant")), "{{tenant}}")
QUOTA_SHARE = Query(
    top(f"max by (tenant) ({ratio(select('tenant_blocks'), select('tenant_quota_blocks'))})"), "{{tenant}}"
)
"""Of the engine core in which it is highest: a quota is one engine's."""
REJECTIONS = Query(top(per_second("tenant_rejections_total", "tenant")), "{{tenant}}")
ENDED = Query(top(per_second("requests_total", "tenant")), "{{tenant}}")
OLDEST_WAIT = Query(top(f"max by (tenant) ({select('oldest_wait_seconds')})"), "{{tenant}}")
CONCURRENCY = Query(f"bottomk(10, min by (tenant) ({select('effective_concurrency', percentile='95')}))", "{{tenant}}")
BLOCK_SECONDS = Query(top(per_second("block_seconds_total", "tenant")), "{{tenant}}")
COST_PER_HOUR = Query(top(f"{per_second('cost_total', 'tenant')} * {HOUR_SECONDS}"), "{{tenant}}")
COST_PER_REQUEST = Query(
    top(ratio(per_second("cost_total", "tenant"), per_second("requests_total", "tenant"))), "{{tenant}}"
)
