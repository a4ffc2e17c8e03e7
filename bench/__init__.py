"""Benchmarks: ratios and shares measured in one run, each against a bar where there is one. `python -m bench`."""
