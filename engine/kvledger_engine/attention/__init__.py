"""Attention through block tables: the plan of a step, and the reference that computes it."""
