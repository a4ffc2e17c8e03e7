"""Measurements that need an accelerator: `python -m bench.gpu`. Nothing of them is in docs/benchmarks.md."""
