"""Benchmarks as programs: each prints ratios against something anyone can run beside it, and asserts nothing."""
