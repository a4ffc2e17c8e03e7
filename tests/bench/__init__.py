"""Tests of the benchmarks: that they can fail, and that what they show is what they measured."""
