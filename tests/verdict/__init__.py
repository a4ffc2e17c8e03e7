"""Verdicts on real engines: scenarios are flags and load, run live, and what the agent says of them."""
