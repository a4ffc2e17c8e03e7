"""Queries of requests: what they wait for, how they are refused and end, how long they take, how large they are."""

from __future__ import annotations

from kvledger_dashboards.queries.selection import (
    CORE,
    CORE_LEGEND,
    Query,
    added,
    per_second,
    percentiles,
    quantile,
    ratio,
    select,
)

WAIT_SECONDS = Query(per_second("wait", "cause"), "{{cause}}")
WAITING_NOW = Query(added("requests_waiting", "cause"), "{{cause}}")
OLDEST_WAIT = Query(f"max by (cause) ({select('oldest_wait_seconds')})", "{{cause}}")
WAIT_P95 = Query(quantile(95, "wait", "cause"), "{{cause}}")

NEVER_FIT = Query(added("requests_never_fit", CORE), CORE_LEGEND)

LIVE = Query(added("requests_live", "state"), "{{state}}")
LIVE_BY_CLASS = Query(added("requests_live", "class"), "{{class}}")
REJECTIONS = Query(per_second("rejections_total", "reason"), "{{reason}}")
ENDINGS = Query(per_second("requests_total", "finish_reason"), "{{finish_reason}}")
_REFUSED = per_second("rejections_total")
REFUSED_SHARE = Query(ratio(_REFUSED, f"{_REFUSED} + {per_second('requests_total')}"), "refused")
CANCELLATIONS = Query(per_second("cancellations_total", "cause"), "{{cause}}")

TTFT = percentiles("time_to_first_token", 50, 95, 99)
TTFB = percentiles("time_to_first_block", 50, 95, 99)
TOKEN_GAP = percentiles("inter_token_latency", 50, 95, 99)
TTFT_BY_CLASS = Query(quantile(95, "time_to_first_token", "class"), "{{class}}")
DURATION = Query(quantile(95, "request_duration", "finish_reason"), "{{finish_reason}}")

TOKENS = (
    Query(per_second("generation_tokens_total"), "generated"),
    Query(per_second("prompt_tokens_total"), "prompt"),
    Query(per_second("recomputed_tokens_total"), "computed again"),
)
PEAK_BLOCKS = percentiles("request_peak_blocks", 50, 95, 99)
PLANNED_LENGTHS = Query(f"max by (percentile) ({select('length_tokens')})", "P{{percentile}}")
LENGTHS = Query(quantile(95, "request_tokens", "kind"), "{{kind}}")
