"""Benchmarks: ratios against a peer measured in the same run; not timed tests."""
