"""Boards for people: Grafana dashboards, generated, and the explorer. Computes no figure that the agent does not export."""
