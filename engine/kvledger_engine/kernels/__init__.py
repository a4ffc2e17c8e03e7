"""Triton's kernels over the paged store, for CUDA tensors: decode attention, cache write, block copy."""
