"""The table: every recording rule and alert, as expressions over the catalogue's names. Pure; no YAML, no file.

Unknown is never zero: no expression falls back to a constant, so an engine that does not report a family cannot fire
on it. Gauges stand under max_over_time or min_over_time: one failed scrape neither fires nor clears anything.
"""

from __future__ import annotations

from kvledger_alerts import agent_rows, engine_rows, pool_rows, request_rows, slo_rows, verdict_rows
from kvledger_alerts.table import AlertRow, Parameters, RecordingRow


def recording_rows(parameters: Parameters) -> tuple[RecordingRow, ...]:
    """The recording rules, in an order in which each only needs scraped series."""
    return tuple(row for part in (pool_rows, request_rows, slo_rows) for row in part.recording_rows(parameters))


def alert_rows(parameters: Parameters) -> tuple[AlertRow, ...]:
    """All alerts: the pool's, the engine's, the requests', the verdict's, the objectives', and kvledger's own."""
    parts = (pool_rows, engine_rows, request_rows, verdict_rows, slo_rows, agent_rows)
    return tuple(row for part in parts for row in part.alert_rows(parameters))
