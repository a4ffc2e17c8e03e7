"""Alerts: the table, the generated files, Alertmanager, the runbook, and all of it live."""
