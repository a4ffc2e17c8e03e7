"""Tests that need an accelerator: the kernels compiled, over the whole grid of shapes."""
