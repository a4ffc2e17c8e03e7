"""Boards for people: Grafana dashboards, generated, and the explorer. Computes no figure of its own."""
