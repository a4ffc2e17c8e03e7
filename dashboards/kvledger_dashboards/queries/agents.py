"""Queries of the agents on themselves: sources, losses, what they cost, and which signals engines do not report."""

from __future__ import annotations

from kvledger_dashboards.queries.selection import CORE, Query, added, now, per_second, rows, select

SOURCE_LEGEND = "{{source}} {{instance}}"
INSTANCE_LEGEND = "{{instance}}"

AGENTS = now(f"count({select('build_info')})", "agents")
VERSIONS = rows(f"count by (version) ({select('build_info')})")
SOURCES = now(added("agent_source_success"), "read")
SOURCES_FAILING = now(f"sum(1 - {select('agent_source_success')})", "failing")
OLDEST_SAMPLE = now(f"max({select('agent_source_age_seconds')})", "oldest sample")
LOSSES = now(per_second("agent_events_lost_total"), "lost")
OVERFLOWS_NOW = now(per_second("agent_ledger_overflows_total"), "overflows")
PROCESSOR_NOW = now(f"max(rate({select('agent_cpu_seconds_total')}[$__rate_interval]))", "cores")
MEMORY_NOW = now(f"max({select('agent_memory_bytes')})", "memory")

SAMPLE_AGE = Query(f"max by (instance, source) ({select('agent_source_age_seconds')})", SOURCE_LEGEND)
SAMPLE_DURATION = Query(f"max by (instance, source) ({select('agent_source_duration_seconds')})", SOURCE_LEGEND)
EVENTS_LOST = Query(per_second("agent_events_lost_total", "instance, source"), SOURCE_LEGEND)
READS_RETRIED = Query(per_second("agent_reads_retried_total", "instance, source"), SOURCE_LEGEND)
OVERFLOWS = Query(per_second("agent_ledger_overflows_total", "instance, source"), SOURCE_LEGEND)
FAILING = Query(f"sum by (instance, source) (1 - {select('agent_source_success')})", SOURCE_LEGEND)
PROCESSOR = Query(per_second("agent_cpu_seconds_total", "instance"), INSTANCE_LEGEND)
MEMORY = Query(f"max by (instance) ({select('agent_memory_bytes')})", INSTANCE_LEGEND)
EXPORTS = (
    Query(per_second("agent_otlp_exports_total"), "tried"),
    Query(per_second("agent_otlp_failures_total"), "failed"),
)

_CAPABILITY = select("capability")
MISSING_OF_EACH = rows(f"sum by ({CORE}) (1 - {_CAPABILITY})")
"""Signals that each engine core does not report: 0 for one that reports all."""
MISSING_SIGNALS = rows(f"sum by (signal) (1 - {_CAPABILITY}) > 0")
