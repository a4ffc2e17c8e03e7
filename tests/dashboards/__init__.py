"""Tests of the boards: rules over the committed JSON, and every query against a real Prometheus."""
