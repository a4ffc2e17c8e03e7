"""The Grafana boards, one module each: what is on it, where, and what its panels tell a reader to do."""
