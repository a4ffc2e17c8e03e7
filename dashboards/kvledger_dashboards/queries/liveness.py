"""Queries of engines being alive: up or gone, heartbeats, steps, restarts, and where a step's time goes."""

from __future__ import annotations

from kvledger_dashboards.queries.selection import CORE, CORE_LEGEND, WINDOW, Query, now, per_second, ratio, select

ENGINES_DOWN = now(f"sum(1 - {select('engine_up')} - {select('engine_closed')})", "down")
"""Without those that were stopped cleanly."""
HEARTBEAT_AGE = Query(
    f"max by ({CORE}) ({select('engine_heartbeat_age_seconds')} unless {select('engine_idle')} == 1)", CORE_LEGEND
)
STEPS = Query(per_second("engine_steps_total", CORE), CORE_LEGEND)
RESTARTS = Query(f"sum by ({CORE}) (increase({select('engine_restarts_total')}{WINDOW}))", CORE_LEGEND)
PHASES = Query(f"{per_second('step', 'phase')} / on () group_left () ({per_second('step')} > 0)", "{{phase}}")
PUBLISH_SHARE = Query(ratio(per_second("step", CORE, phase="publish"), per_second("step", CORE)), CORE_LEGEND)
