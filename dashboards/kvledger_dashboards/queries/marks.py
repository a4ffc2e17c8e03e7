"""Queries of what is marked on every graph: firing alerts, restarts of engines, findings that open."""

from __future__ import annotations

from kvledger_dashboards.queries.selection import CORE, WINDOW, select

FIRING_ALERTS = 'ALERTS{alertname=~"Kvledger.+",alertstate="firing",engine=~"$engine|"}'
"""Alerts about the chosen engines, and those about no engine at all, such as an absent agent."""
FLEET_ALERTS = 'ALERTS{alertname=~"Kvledger.+",alertstate="firing",severity="critical",model=~"$model|"}'
RESTARTS = f"increase({select('engine_restarts_total')}{WINDOW}) > 0"
_OPEN = f"max by ({CORE}, kind) ({select('findings')}) > 0"
_BEFORE = f"max by ({CORE}, kind) ({select('findings')} offset $__rate_interval) > 0"
LEAKS = f"({_OPEN}) unless ({_BEFORE})"
"""Findings that have opened within the last window."""
