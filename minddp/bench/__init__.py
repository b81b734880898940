"""Benchmarks: ratios between contenders that take turns within one run."""
