"""Alerts: one table, and the rules, runbook links and Alertmanager configuration that are generated from it."""
